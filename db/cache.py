"""What processes keep of rows that rarely change, kept right by the epochs of those rows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from sqlalchemy import Connection

from db import epochs
from db.engine import Database
from objects import errors

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class EpochCache(Generic[T]):
    """A value loaded from the database and loaded again when one of its epochs has risen.

    ``names`` are the epochs it depends on. They are looked at when the value is asked for and the last look is ``interval`` seconds
    old; nothing happens while nobody asks. Safe for threads: one looks, the others go on with the value they have. While the
    database cannot be asked the value stays what it was; only before the first load is DatabaseUnavailable raised.
    The same object is returned until something changed, and it is shared: do not change it.
    """

    def __init__(self, database: Database, names: Sequence[str], load: Callable[[Connection], T], interval: float = 1.0) -> None:
        self._database = database
        self._names = tuple(names)
        self._load = load
        self._interval = interval
        self._looking = threading.Lock()
        self._value: tuple[T] | None = None
        self._epochs: dict[str, int] | None = None
        self._looked = 0.0  # when the last look began that succeeded; monotonic clock, as all of these
        self._next = 0.0
        self._failing = False

    def get(self) -> T:
        """The value, at most ``interval`` seconds old unless another thread is looking or the database is away."""
        value = self._value
        if value is not None and (time.monotonic() < self._next or not self._looking.acquire(blocking=False)):
            return value[0]
        if value is None:
            return self.refresh()
        try:
            return self._look_or_keep(value[0])
        finally:
            self._looking.release()

    def refresh(self) -> T:
        """Look now, and return the value. Threads that ask while one looks share the look after it.

        Raises DatabaseUnavailable only if there is no value yet.
        """
        asked = time.monotonic()
        with self._looking:
            value = self._value
            if value is None:
                return self._look()
            if self._looked >= asked:
                return value[0]
            return self._look_or_keep(value[0])

    def _look_or_keep(self, value: T) -> T:
        try:
            return self._look()
        except errors.DatabaseUnavailable as error:
            self._next = time.monotonic() + self._interval
            if not self._failing:
                LOG.warning("%s: going on with what is known: %s", ", ".join(self._names), error)
            self._failing = True
            return value

    def _look(self) -> T:
        begun = time.monotonic()
        seen, loaded = self._database.read(self._load_if_changed)
        if loaded is not None:
            self._value, self._epochs = loaded, seen
        if self._value is None:  # not reached: without a value, one was loaded
            raise RuntimeError("an epoch cache has no value after loading")
        self._looked = begun
        self._next = time.monotonic() + self._interval
        self._failing = False
        return self._value[0]

    def _load_if_changed(self, tx: Connection) -> tuple[dict[str, int], tuple[T] | None]:
        every = epochs.read(tx)
        mine = {name: every.get(name, 0) for name in self._names}
        return mine, None if mine == self._epochs and self._value is not None else (self._load(tx),)
