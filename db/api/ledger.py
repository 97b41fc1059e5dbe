"""Who writes to the ledger of claims, and in which order: what lets every scheduler follow the others' claims."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import sqlalchemy as sa

from db.api.tables import writers
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors

P = ParamSpec("P")
T = TypeVar("T")


LIFE = 3600.0
"""Seconds for which a pen writes under one id. So nobody need look for ids that are much older than the newest ones."""
KEPT = 1000
"""Writers that are remembered: the newest."""


class Stamp(NamedTuple):
    """What a transaction marks the inventories with that it changes: the process's writer id, and the number of the transaction."""

    writer: int
    sequence: int


class Ledger:
    """One process's pen. ``write(fn, ...)`` calls ``fn(tx, stamp, ...)`` in one transaction of ``database``.

    The process has one such transaction at a time, so its numbers become visible in their order, and a reader's cursor of
    (writer, number) misses nothing. One global sequence cannot promise that: transactions commit in another order than they draw
    numbers. Numbers need not be dense: every attempt of a transaction draws one.
    """

    def __init__(self, database: ApiDatabase, name: str) -> None:
        self.database = database
        self._name = name
        self._lock = threading.Lock()
        self._writer: int | None = None
        self._since = 0.0  # monotonic clock
        self._sequence = 0

    def write(self, fn: Callable[Concatenate[ApiTransaction, Stamp, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises what ``fn`` raises, and what ``Database.write`` does."""
        with self._lock:
            try:
                if time.monotonic() - self._since > LIFE:
                    self._writer = None
                stamp, result = self.database.write(self._attempt, lambda tx, stamp: fn(tx, stamp, *args, **kwargs))
            except errors.DatabaseUnavailable:
                # A commit of unknown outcome may still become visible after our next one: that one must come from another writer.
                self._writer = None
                raise
            if stamp.writer != self._writer:
                self._since = time.monotonic()
            self._writer, self._sequence = stamp
            return result

    def _attempt(self, tx: ApiTransaction, body: Callable[[ApiTransaction, Stamp], T]) -> tuple[Stamp, T]:
        """A writer comes into being with its first transaction, and is ours only if that commits."""
        writer, self._sequence = (self._register(tx), 1) if self._writer is None else (self._writer, self._sequence + 1)
        stamp = Stamp(writer, self._sequence)
        return stamp, body(tx, stamp)

    def _register(self, tx: ApiTransaction) -> int:
        key = tx.execute(sa.insert(writers), {"name": self._name, "started": time.time()}).inserted_primary_key
        if key is None:
            raise RuntimeError("the database gave a new writer no id")
        tx.execute(_FORGET, {"upto": int(key[0]) - KEPT})
        return int(key[0])


def once(tx: ApiTransaction, name: str) -> Stamp:
    """A stamp for this one transaction, by a writer of its own: the youngest there is."""
    key = tx.execute(sa.insert(writers), {"name": name[:255], "started": time.time()}).inserted_primary_key
    if key is None:
        raise RuntimeError("the database gave a new writer no id")
    return Stamp(int(key[0]), 1)


_FORGET = sa.delete(writers).where(writers.c.id <= sa.bindparam("upto"))
