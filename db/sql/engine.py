"""One database: how transactions begin, end, are tried again and fail."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

import msgspec
import sqlalchemy as sa
from oslo_db import exception as oslo_exception

from db.sql import clock, facade, retry
from db.sql import url as urls
from db.sql.connection import ApiTransaction, CellTransaction, Tx_co
from db.sql.facade import Opening
from db.sql.galera import Certified
from db.sql.sqlite_write_lock import Turn, turn_of
from objects import errors
from objects.mask import mask_url
from service import metrics, room

P = ParamSpec("P")
T = TypeVar("T")

DuplicateEntry: type[Exception] = oslo_exception.DBDuplicateEntry
"""Raised by an insert whose key, or unique value, is taken."""

WRITE_TURN_TIMEOUT_S = 30.0
"""Seconds that a thread waits for the other writers of its process before it gives up."""


BRIEF_STATEMENT_TIMEOUT_S = 3.0
"""Seconds that one statement of a list may take."""
_SQLITE_STEPS_PER_CHECK = 100_000
"""Instructions of SQLite's virtual machine between two checks of the clock: about a millisecond."""
TOO_COSTLY = (
    "This list takes too long. Ask for less: fewer tags or other filters, a smaller limit, or one project. Or try again later."
)


class NestedWrite(RuntimeError):
    """A write transaction was begun inside another one of the same thread and database: a fault in the program."""


class WriteInRead(RuntimeError):
    """A function run by ``read`` tried to write: a fault in the program."""


class OutcomeUnknown(errors.DatabaseUnavailable):
    """The connection broke during the commit: the transaction may have happened or not, so it was not run again."""


REFUSED_WRITE_VALID_S = 30.0
"""Seconds for which a refused write says that the database takes none."""


class _RefusedWrite(NamedTuple):
    """The latest write that was refused, and when (monotonic clock)."""

    error: errors.DatabaseUnavailable
    at: float


class _Context:
    """What enginefacade hangs one transaction on. One per transaction, so that none joins another by accident."""


class Database(Generic[Tx_co]):
    """One database. Every transaction of the project goes through ``read`` or ``write``.

    Both call ``fn(connection, *args, **kwargs)`` in one transaction and return its result. They run it again as a whole when it met
    another transaction or lost its connection (``db/sql/retry.py``), so ``fn`` must have no effect besides the database. They raise
    DatabaseUnavailable, with the password masked, if the database cannot be reached, takes no writes or stays busy, and StorageFull
    if there is no room left. Nothing is opened before the first transaction. ``name`` is what statement counts call this database;
    ``create`` lets SQLite make a missing file. ``outbox``: its transactions note what is to be told (``db/outbox.py``).
    ``certified``: its transactions are safe beside those of other nodes of a Galera cluster; not before it has its schema.
    """

    def __init__(  # noqa: PLR0913, RUF100 - all but the first by name
        self,
        url: str,
        *,
        name: str = "",
        max_pool_size: int = 5,
        create: bool = False,
        outbox: bool = False,
        certified: bool = True,
    ) -> None:
        parsed = urls.parse_url(url)
        urls.check_driver(parsed)
        self.dialect: str = parsed.get_backend_name()
        self.url_masked: str = urls.masked_url(url)
        self.name = name or os.path.basename(str(parsed.database))
        self._file = urls.file_of(parsed)
        self._turn = turn_of(self._file) if self._file else Turn(exclusive=False)
        opening = Opening(url=url, name=self.name, max_pool_size=max_pool_size, create=create, outbox=outbox)
        self._clock = clock.ClockReading()
        self._certified = certified
        writing = facade.make_facade(opening, self._clock)
        # Connections for reading refuse to write, so the first test finds a function that was given to the wrong method. On a
        # server they save the round trip that ends a transaction.
        reading = facade.make_facade(msgspec.structs.replace(opening, query_only=True), self._clock)
        brief = facade.make_facade(
            msgspec.structs.replace(opening, query_only=True, statement_timeout=BRIEF_STATEMENT_TIMEOUT_S), self._clock
        )
        self._refused: _RefusedWrite | None = None
        self._facades = (writing, reading, brief)
        self._writer = writing.writer
        self._tolerant = threading.local()
        self._seconds = metrics.TRANSACTION.labels(self.name)
        self._reader = reading.reader
        self._brief_reader = brief.reader

    def __repr__(self) -> str:
        return f"Database({self.name!r}, {self.url_masked!r})"

    def write(self, fn: Callable[Concatenate[Tx_co, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in one transaction that may write. On SQLite it holds the file's only write lock from its beginning.

        Raises NestedWrite inside another write of this thread and database: it would wait for itself.
        """
        return self._run(lambda: self._write_once(lambda tx: fn(cast(Tx_co, tx), *args, **kwargs)))

    def read(self, fn: Callable[Concatenate[Tx_co, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn``, which only reads. On SQLite it sees one moment, on a server each of its statements the moment it begins in.

        It waits for no writer. Raises WriteInRead where it tries to write.
        """
        return self._run(lambda: self._read_once(lambda tx: fn(cast(Tx_co, tx), *args, **kwargs)))

    def read_briefly(self, fn: Callable[Concatenate[Tx_co, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``read`` for questions that callers can make as costly as they like.

        Raises TooCostly where a statement, or on SQLite all of them, takes longer than BRIEF_STATEMENT_TIMEOUT_S.
        """
        return self._run(lambda: self._read_briefly_once(lambda tx: fn(cast(Tx_co, tx), *args, **kwargs)))

    def current_time(self) -> float:
        """What the database's clock says, in seconds since the epoch: stored times are compared with it, not with a machine's.

        Mostly without a statement: each new connection reads it, and this process extrapolates. Raises DatabaseUnavailable if it
        was never read.
        """
        if not self._clock.is_fresh:
            try:
                self.read(self._clock.refresh_reading)
            except errors.DatabaseUnavailable:
                if self._clock.current_time() is None:
                    raise
        return self._clock.current_time() or 0.0

    @property
    def knows_time(self) -> bool:
        """Whether ``current_time`` answers without asking the database."""
        return self._clock.is_fresh

    def check_writable(self, refusal: str = "") -> None:
        """Raise StorageFull or ReadOnlyDatabase if writes were refused a moment ago, and none has succeeded since.

        Likewise if the disk of an SQLite file is full, or if there is a ``refusal``, which is what the server has said.
        """
        if refusal:
            raise errors.ReadOnlyDatabase(f"Database {self.url_masked} takes no writes: {refusal}")
        refused = self._refused
        if refused is not None and time.monotonic() < refused.at + REFUSED_WRITE_VALID_S:
            raise type(refused.error)(str(refused.error))
        if self._file and (trouble := room.trouble_of(os.path.dirname(os.path.abspath(self._file)))):
            raise errors.StorageFull(f"Database {self.url_masked} cannot be written: {trouble}")
        if self._file and os.path.exists(self._file) and not os.access(self._file, os.W_OK):
            raise errors.ReadOnlyDatabase(f"Database {self.url_masked} takes no writes: its file may not be written")

    def has_engine(self, engine: sa.Engine) -> bool:
        """Whether the engine is one of this database's."""
        return any(opened.has_engine(engine) for opened in self._facades)

    def dispose_connections(self) -> None:
        """Close the idle connections, and use none again that is in use now. The next transaction opens new ones."""
        for opened in self._facades:
            opened.dispose_connections()

    def _run(self, transaction: Callable[[], T]) -> T:
        begun = time.monotonic()
        try:
            try:
                return transaction()
            except Exception as error:
                if self._file and retry.is_not_text(error):
                    return self._read_tolerantly(transaction)
                if (kind := retry.classify_error(error)) is not retry.ErrorKind.OTHER:
                    metrics.DATABASE_ERRORS.labels(self.name, kind.value).inc()
                if not retry.is_passing(error):
                    raise
                return retry.retry_transaction(transaction, error, spent=time.monotonic() - begun)
        except errors.SuperconductorError:
            raise
        except Exception as error:
            unavailable = self._unavailable_error(error)
            if unavailable is None:
                raise
            if isinstance(unavailable, (errors.StorageFull, errors.ReadOnlyDatabase)):
                self._refused = _RefusedWrite(unavailable, time.monotonic())
            raise unavailable from error
        finally:
            self._seconds.observe(time.monotonic() - begun)

    def _read_tolerantly(self, transaction: Callable[[], T]) -> T:
        """Run it with replacement characters for bytes that are no UTF-8, which only SQLite lets a column of text hold."""
        self._tolerant.on = True
        try:
            return transaction()
        finally:
            self._tolerant.on = False

    def _begin_on_sqlite(self, tx: sa.Connection, statement: str) -> None:
        """Speak to the SQLite driver itself: it takes a tenth of the time of a statement of SQLAlchemy's."""
        connection = cast(sqlite3.Connection, tx.connection.driver_connection)
        connection.text_factory = _decode_replacing if getattr(self._tolerant, "on", False) else str
        connection.execute(statement)

    def _write_once(self, body: Callable[[sa.Connection], T]) -> T:
        me = threading.get_ident()
        if me in self._turn.writers:
            raise NestedWrite(f"a write to {self!r} began inside another one of the same thread")
        if not self._turn.take_turn(WRITE_TURN_TIMEOUT_S):
            raise errors.DatabaseUnavailable(
                f"Database {self.url_masked} is busy: no write could begin within {WRITE_TURN_TIMEOUT_S:.0f} s"
            )
        self._turn.writers.add(me)
        try:
            return self._write_in_turn(body)
        finally:
            self._turn.writers.discard(me)
            self._turn.hand_on()

    def _write_in_turn(self, body: Callable[[sa.Connection], T]) -> T:
        committing = False
        try:
            with self._writer.using(_Context()) as tx:
                if self._file:
                    # After a deferred BEGIN, a write that follows a read fails at once if another has written meanwhile; no busy
                    # timeout helps.
                    self._begin_on_sqlite(tx, "BEGIN IMMEDIATE")
                certified = Certified(tx) if self._certified else None
                result = body(tx)
                if certified is not None:
                    certified.certify_writes()
                committing = True
            self._refused = None
            return result
        except Exception as error:
            if committing and retry.is_unsure(error):
                raise OutcomeUnknown(f"Database {self.url_masked} was lost during a commit: {retry.cause_of(error)}") from error
            raise

    def _read_briefly_once(self, body: Callable[[sa.Connection], T]) -> T:
        try:
            if not self._file:
                return self._read_once(body, self._brief_reader)
            return self._read_once(
                lambda tx: _run_until(tx, time.monotonic() + BRIEF_STATEMENT_TIMEOUT_S, body), self._brief_reader
            )
        except Exception as error:
            if retry.is_out_of_time(error):
                raise errors.TooCostly(TOO_COSTLY) from error
            raise

    def _read_once(self, body: Callable[[sa.Connection], T], reader: Any = None) -> T:
        try:
            with (reader or self._reader).using(_Context()) as tx:
                if self._file:
                    self._begin_on_sqlite(tx, "BEGIN")
                return body(tx)
        except Exception as error:
            if self._refuses_writes(retry.cause_of(error)):
                raise WriteInRead(f"a function that writes was given to read() of {self!r}") from error
            raise

    def _refuses_writes(self, error: BaseException) -> bool:
        """Whether a connection for reading was to write."""
        if self._file:
            return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY
        return retry.is_read_only(error)

    def _unavailable_error(self, error: Exception) -> errors.DatabaseUnavailable | None:
        kind = retry.classify_error(error)
        reason = mask_url(str(retry.cause_of(error)).strip().replace("\n", " "))
        if kind is retry.ErrorKind.UNSYNCED:
            text = f"Database {self.url_masked} has no schema, or an old one; apply it with 'superconductor db sync' ({reason})"
        elif kind is retry.ErrorKind.CONFLICT:
            text = f"Database {self.url_masked} stays busy: {reason}"
        elif kind is retry.ErrorKind.FULL:
            where = f"the disk of {self._file}, and look at quotas there" if self._file else "its server's disk"
            text = f"Database {self.url_masked} cannot be written: {reason}; free space on {where}. Work then continues by itself"
            return errors.StorageFull(text)
        elif kind is retry.ErrorKind.READ_ONLY:
            text = f"Database {self.url_masked} takes no writes: {reason}; new connections look for a server that does"
            return errors.ReadOnlyDatabase(text)
        elif retry.is_read_only_file(error):
            return errors.ReadOnlyDatabase(f"Database {self.url_masked} takes no writes: {reason}")
        elif kind in (retry.ErrorKind.LOST, retry.ErrorKind.LASTING):
            text = f"Database {self.url_masked} cannot be used: {reason}"
        else:
            return None
        return errors.DatabaseUnavailable(text)


ApiDatabase: TypeAlias = Database[ApiTransaction]
CellDatabase: TypeAlias = Database[CellTransaction]


def _run_until(tx: sa.Connection, end: float, body: Callable[[sa.Connection], T]) -> T:
    """Run ``body``; SQLite interrupts its statements after ``end`` (monotonic clock)."""
    connection = cast(sqlite3.Connection, tx.connection.driver_connection)
    connection.set_progress_handler(lambda: time.monotonic() > end, _SQLITE_STEPS_PER_CHECK)
    try:
        return body(tx)
    finally:
        connection.set_progress_handler(None, 0)


def _decode_replacing(text: bytes) -> str:
    return text.decode(errors="replace")
