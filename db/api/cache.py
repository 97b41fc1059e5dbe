"""What processes keep of rows that rarely change, kept right by the epochs of those rows."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from db.api import epochs
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class EpochReader:
    """Reads all epochs of a database at once, for the caches that share it. Safe for threads."""

    def __init__(self, database: ApiDatabase) -> None:
        self.database = database
        self._lock = threading.Lock()
        self._epochs: dict[str, int] = {}
        self._read_at = -math.inf

    def read(self, since: float) -> tuple[dict[str, int], float]:
        """The epochs as a statement found them that began at ``since`` or later, and when it began; by the monotonic clock.

        Raises DatabaseUnavailable.
        """
        with self._lock:
            if self._read_at < since:
                begun = time.monotonic()
                self._epochs = self.database.read(epochs.read)
                self._read_at = begun
            return self._epochs, self._read_at


class EpochCache(Generic[T]):
    """A value loaded from the database and loaded again when one of its epochs has risen.

    ``names`` are the epochs it depends on. They are looked at when the value is asked for and the last look is ``interval`` seconds
    old; nothing happens while nobody asks. Caches with the same ``reader`` share their looks. Safe for threads: one looks, the
    others go on with the value they have. While the database cannot be asked the value stays what it was; only before the first
    load is DatabaseUnavailable raised. The same object is returned until something changed, and it is shared: do not change it.
    """

    def __init__(
        self, reader: EpochReader, names: Sequence[str], load: Callable[[ApiTransaction], T], interval: float = 1.0
    ) -> None:
        self._reader = reader
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
            return self._look_or_keep(value[0], since=time.monotonic() - self._interval)
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
                return self._look(asked)
            if self._looked >= asked:
                return value[0]
            return self._look_or_keep(value[0], asked)

    def _look_or_keep(self, value: T, since: float) -> T:
        try:
            return self._look(since)
        except errors.DatabaseUnavailable as error:
            self._next = time.monotonic() + self._interval
            if not self._failing:
                LOG.warning("%s: going on with what is known: %s", ", ".join(self._names), error)
            self._failing = True
            return value

    def _look(self, since: float) -> T:
        """The epochs are read before what they guard: a change that comes between is seen the next time."""
        every, read_at = self._reader.read(since)
        mine = {name: every.get(name, 0) for name in self._names}
        if mine != self._epochs or self._value is None:
            self._value = (self._reader.database.read(self._load),)
            self._epochs = mine
        self._looked = read_at
        self._next = read_at + self._interval
        self._failing = False
        return self._value[0]
