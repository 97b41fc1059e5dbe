"""In-process caches of rows that rarely change. An epoch per kind of row tells when to load them again."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from db.api.rows import epochs
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class EpochReader:
    """Reads all epochs of a database in one statement, for the caches that share the reader. Thread-safe."""

    def __init__(self, database: ApiDatabase) -> None:
        self.database = database
        self._lock = threading.Lock()
        self._epochs: dict[str, int] = {}
        self._read_at = -math.inf

    @property
    def read_at(self) -> float:
        """When the statement began that read the latest epochs (monotonic clock)."""
        return self._read_at

    def read(self, since: float) -> tuple[dict[str, int], float]:
        """The epochs from a statement that began at ``since`` or later, and when that began (monotonic clock).

        Raises DatabaseUnavailable.
        """
        with self._lock:
            if self._read_at < since:
                begun = time.monotonic()
                self._epochs = self.database.read(epochs.read)
                self._read_at = begun
            return self._epochs, self._read_at

    def note_epochs(self, read: dict[str, int], since: float) -> None:
        """Take over epochs that another statement has read, which began at ``since`` (monotonic clock)."""
        with self._lock:
            if since > self._read_at:
                self._epochs, self._read_at = read, since


class EpochCache(Generic[T]):
    """A value loaded from the database, and loaded again when one of its epochs has risen.

    ``names``: the epochs it depends on. ``get`` checks them if the last check is ``interval`` seconds old; there is no background
    work. Caches with the same ``reader`` share their checks. Thread-safe: one thread checks, the others use the value they have.
    While the database is unavailable the cache keeps its value. It raises DatabaseUnavailable only before the first load. Callers
    share the returned object: do not change it.
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
        self.loaded_epochs: Mapping[str, int] = {}
        """Those that the value was loaded for: it is as new as these, or newer. Empty before the first load."""
        self._looked = 0.0  # when the last successful check began (monotonic clock, like the times below)
        self._next = 0.0
        self._failing = False

    def get(self, age: float | None = None) -> T:
        """The value, at most ``age`` seconds old unless another thread is checking or the database is unavailable.

        ``age``: at least ``interval``, which None stands for. Epochs that were read for others count too.
        """
        interval = self._interval if age is None else age
        value = self._value
        if value is not None and (self._is_fresh(interval) or not self._looking.acquire(blocking=False)):
            return value[0]
        if value is None:
            return self.refresh_value()
        try:
            return self._look_or_keep(value[0], since=time.monotonic() - interval)
        finally:
            self._looking.release()

    def _is_fresh(self, interval: float) -> bool:
        """Whether no epochs were read after the last check, and that was ``interval`` seconds ago at most, or the next is later."""
        return self._reader.read_at <= self._looked and time.monotonic() < max(self._next, self._looked + interval)

    def refresh_value(self, since: float | None = None) -> T:
        """Check the epochs now, and return the value. Threads that call this during a check share the next one.

        ``since``: a check that began then or later will do (monotonic clock). Raises DatabaseUnavailable only if there is no value
        yet.
        """
        asked_at = time.monotonic() if since is None else since
        looked, known = self._looked, self._value  # in this order: the value is as new as the look, or newer
        if known is not None and looked >= asked_at:
            return known[0]
        with self._looking:
            value = self._value
            if value is None:
                return self._look_for_changes(asked_at)
            if self._looked >= asked_at:
                return value[0]
            return self._look_or_keep(value[0], asked_at)

    def _look_or_keep(self, value: T, since: float) -> T:
        try:
            return self._look_for_changes(since)
        except errors.DatabaseUnavailable as error:
            self._next = time.monotonic() + self._interval
            if not self._failing:
                LOG.warning("%s: going on with what is known: %s", ", ".join(self._names), error)
            self._failing = True
            return value

    def _look_for_changes(self, since: float) -> T:
        """Read the epochs before the rows that they guard: the next check then sees a change made in between."""
        every, read_at = self._reader.read(since)
        mine = {name: every.get(name, 0) for name in self._names}
        if mine != self.loaded_epochs or self._value is None:
            self._value = (self._reader.database.read(self._load),)
            self.loaded_epochs = mine
        self._looked = read_at
        self._next = read_at + self._interval
        self._failing = False
        return self._value[0]
