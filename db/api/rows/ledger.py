"""Writer ids and sequence numbers of transactions that change inventories. With them schedulers follow each other's claims."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import sqlalchemy as sa

from db.api.rows.tables import writers
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors

P = ParamSpec("P")
T = TypeVar("T")


WRITER_LIFETIME_S = 3600.0
"""Seconds for which a ledger uses one writer id. Readers can then ignore ids much older than the newest."""
WRITERS_KEPT = 1000
"""Newest writers that are kept in the table."""


class Stamp(NamedTuple):
    """The mark of a transaction on the inventories that it changes: its writer id and its sequence number."""

    writer: int
    sequence: int


class Ledger:
    """Writes inventories for one process. ``write(fn, ...)`` calls ``fn(tx, stamp, ...)`` in one transaction of ``database``.

    The process runs one such transaction at a time, so its numbers become visible in order, and a reader's cursor of (writer,
    number) misses nothing. One global sequence cannot guarantee that, because transactions do not commit in the order in which they
    draw numbers. There may be gaps: every attempt of a transaction draws a number.
    """

    def __init__(self, database: ApiDatabase, name: str) -> None:
        self.database = database
        self._name = name
        self._lock = threading.Lock()
        self._writer: int | None = None
        self._since = 0.0  # monotonic clock
        self._sequence = 0

    def write(self, fn: Callable[Concatenate[ApiTransaction, Stamp, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn(tx, stamp, ...)`` in a transaction. Raises what ``fn`` and ``Database.write`` raise."""
        with self._lock:
            try:
                if time.monotonic() - self._since > WRITER_LIFETIME_S:
                    self._writer = None
                stamp, result = self.database.write(self._attempt_write, fn, *args, **kwargs)
            except errors.DatabaseUnavailable:
                # A commit of unknown outcome may become visible after our next commit, so the next one needs another writer id.
                self._writer = None
                raise
            if stamp.writer != self._writer:
                self._since = time.monotonic()
            self._writer, self._sequence = stamp
            return result

    def _attempt_write(
        self, tx: ApiTransaction, fn: Callable[Concatenate[ApiTransaction, Stamp, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[Stamp, T]:
        """Run ``fn`` with the next stamp. A writer's first transaction also inserts it, so it exists only if that commits."""
        writer, self._sequence = (self._register_writer(tx), 1) if self._writer is None else (self._writer, self._sequence + 1)
        stamp = Stamp(writer, self._sequence)
        return stamp, fn(tx, stamp, *args, **kwargs)

    def _register_writer(self, tx: ApiTransaction) -> int:
        key = tx.execute(sa.insert(writers), {"name": self._name, "started": time.time()}).inserted_primary_key
        if key is None:
            raise RuntimeError("the database returned no id for a new writer")
        tx.execute(_FORGET, {"upto": int(key[0]) - WRITERS_KEPT})
        return int(key[0])


def stamp_once(tx: ApiTransaction, name: str) -> Stamp:
    """A stamp for this one transaction, under a writer id of its own, which is the newest."""
    key = tx.execute(sa.insert(writers), {"name": name[:255], "started": time.time()}).inserted_primary_key
    if key is None:
        raise RuntimeError("the database returned no id for a new writer")
    return Stamp(int(key[0]), 1)


_FORGET = sa.delete(writers).where(writers.c.id <= sa.bindparam("upto"))
