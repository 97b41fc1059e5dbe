"""One database: how transactions begin, end, are tried again and fail. Everything of oslo.db that has no types stays in here."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import sqlalchemy as sa
from oslo_db import exception as oslo_exception
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy.pool import QueuePool

from db import retry
from db import url as urls
from db.turn import Turn, turn_of
from objects import errors
from objects.mask import mask_url

P = ParamSpec("P")
T = TypeVar("T")

DuplicateEntry: type[Exception] = oslo_exception.DBDuplicateEntry
"""Raised by an insert whose key, or unique value, is taken."""

TURN_TIMEOUT = 30.0
"""Seconds a thread waits for the other writers of its process before it gives up."""
MAX_OVERFLOW = 20
"""Connections beyond the pool's size that may be open for a moment."""
POOL_TIMEOUT = 10.0
"""Seconds a transaction waits for a connection of the pool."""


class NestedWrite(RuntimeError):
    """A write transaction was begun inside another one of the same thread and database: a fault in the program."""


class OutcomeUnknown(errors.DatabaseUnavailable):
    """The connection broke during the commit: the transaction may have happened or not, so it was not run again."""


class _Context:
    """What enginefacade hangs one transaction on. One per transaction, so that none joins another by accident."""


class Database:
    """One database. Every transaction of the project goes through ``read`` or ``write``.

    Both call ``fn(connection, *args, **kwargs)`` in one transaction and return its result. They run it again as a whole when it met
    another transaction or lost its connection (``db/retry.py``), so ``fn`` must have no effect besides the database. They raise
    DatabaseUnavailable, with the password masked, if the database cannot be reached or stays busy. Nothing is opened before the
    first transaction. ``name`` is what statement counts call this database; ``create`` lets SQLite make a missing file.
    """

    def __init__(self, url: str, *, name: str = "", max_pool_size: int = 5, create: bool = False) -> None:
        self._url = urls.parse(url)
        self._file = urls.file_of(self._url)
        self._create = create
        self._max_pool_size = max_pool_size
        self.dialect: str = self._url.get_backend_name()
        self.url_masked: str = urls.masked(url)
        self.name = name or os.path.basename(str(self._url.database))
        self._turn = turn_of(self._file) if self._file else Turn(exclusive=False)
        self._facade = self._make_facade()
        self._reader = self._facade.reader.connection
        self._writer = self._facade.writer.connection

    def __repr__(self) -> str:
        return f"Database({self.name!r}, {self.url_masked!r})"

    def write(self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in one transaction that may write. On SQLite it holds the file's only write lock from its beginning.

        Raises NestedWrite inside another write of this thread and database: it would wait for itself.
        """
        return self._run(lambda: self._write_once(lambda tx: fn(tx, *args, **kwargs)))

    def read(self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in one transaction that is rolled back at its end. On SQLite it sees one moment and waits for no writer."""
        return self._run(lambda: self._transact(self._reader, "BEGIN", lambda tx: fn(tx, *args, **kwargs)))

    def dispose(self) -> None:
        """Close the idle connections. The next transaction opens new ones."""
        if self._facade.is_started:
            self._facade.dispose_pool()

    def _run(self, transaction: Callable[[], T]) -> T:
        try:
            try:
                return transaction()
            except Exception as error:
                if not retry.is_passing(error):
                    raise
                return retry.again(transaction, error)
        except errors.SuperconductorError:
            raise
        except Exception as error:
            unavailable = self._unavailable(error)
            if unavailable is None:
                raise
            raise unavailable from error

    def _write_once(self, body: Callable[[sa.Connection], T]) -> T:
        me = threading.get_ident()
        if me in self._turn.writers:
            raise NestedWrite(f"a write to {self!r} began inside another one of the same thread")
        if not self._turn.take(TURN_TIMEOUT):
            raise errors.DatabaseUnavailable(f"Database {self.url_masked} is busy: no turn to write within {TURN_TIMEOUT:.0f} s")
        self._turn.writers.add(me)
        try:
            return self._transact(self._writer, "BEGIN IMMEDIATE", body)
        finally:
            self._turn.writers.discard(me)
            self._turn.hand_on()

    def _transact(self, scope: Any, begin: str, body: Callable[[sa.Connection], T]) -> T:
        committing = False
        try:
            with scope.using(_Context()) as tx:
                if self._file:
                    # A deferred BEGIN that comes to write after it has read fails at once if another has written meanwhile, and no
                    # busy time-out helps. It is sent to the driver itself: a fifth of the time of a whole statement.
                    cast(sqlite3.Connection, tx.connection.driver_connection).execute(begin)
                result = body(tx)
                committing = scope is self._writer
            return result
        except Exception as error:
            if committing and retry.classify(error) is retry.Trouble.LOST:
                raise OutcomeUnknown(f"Database {self.url_masked} was lost during a commit: {retry.cause(error)}") from error
            raise

    def _unavailable(self, error: Exception) -> errors.DatabaseUnavailable | None:
        trouble = retry.classify(error)
        reason = mask_url(str(retry.cause(error)).strip().replace("\n", " "))
        if trouble is retry.Trouble.UNSYNCED:
            text = f"Database {self.url_masked} has no schema, or an old one; apply it with 'superconductor db sync' ({reason})"
        elif trouble is retry.Trouble.MEETING:
            text = f"Database {self.url_masked} stays busy: {reason}"
        elif trouble in (retry.Trouble.LOST, retry.Trouble.LASTING):
            text = f"Database {self.url_masked} cannot be used: {reason}"
        else:
            return None
        return errors.DatabaseUnavailable(text)

    def _make_facade(self) -> Any:
        facade = enginefacade.transaction_context()
        if not self._file:
            facade.configure(max_pool_size=self._max_pool_size, max_overflow=MAX_OVERFLOW, pool_timeout=POOL_TIMEOUT)
        facade.configure(
            connection=urls.for_driver(self._url),
            connection_recycle_time=3600,
            max_retries=0,  # a dead server is told at once; who asked decides when to ask again
            thread_checkin=False,  # only for green threads
            logging_name=self.name,
        )
        facade.append_on_engine_create(self._tune)
        return facade

    def _tune(self, engine: sa.Engine) -> None:
        engine.hide_parameters = True  # parameters hold user data and URLs of cells; errors must not show them

        @sa.event.listens_for(engine, "connect")
        def settle(driver_connection: Any, record: object) -> None:
            urls.settle(driver_connection, self._url)

        if self._file:
            self._tune_sqlite(engine, self._file)

    def _tune_sqlite(self, engine: sa.Engine, file: str) -> None:
        # oslo.db would open and close a connection for every transaction; closing the last one folds the log into the file,
        # with two forced writes to the disk. A pool that keeps them is ten times faster.
        old = engine.pool
        engine.pool = QueuePool(
            old._creator,
            pool_size=self._max_pool_size,
            max_overflow=MAX_OVERFLOW,
            timeout=POOL_TIMEOUT,
            use_lifo=True,  # the connection used last has the warmest cache
            dialect=engine.dialect,
            _dispatch=old.dispatch,
        )
        old.dispose()

        @sa.event.listens_for(engine, "do_connect")
        def refuse_missing(dialect: object, record: object, args: list[Any], kwargs: dict[str, Any]) -> None:
            if os.path.exists(file):
                return
            if not self._create:
                raise errors.DatabaseUnavailable(
                    f"Database {self.url_masked} does not exist; make it and apply the schema with 'superconductor db sync'"
                )
            try:
                os.makedirs(os.path.dirname(file), exist_ok=True)
            except OSError as error:
                raise errors.DatabaseUnavailable(f"Database {self.url_masked} cannot be made: {error.strerror}") from error

        @sa.event.listens_for(engine, "engine_connect")
        def begin_is_ours(tx: sa.Connection) -> None:
            tx.info["in_transaction"] = True  # oslo.db's mark of a transaction begun: it sends no BEGIN of its own then
