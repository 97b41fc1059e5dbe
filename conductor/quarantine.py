"""Set aside items that a step cannot process, so that the others continue, and retry them later.

One bad row must not stop a sweep, nor cause a failing transaction in every round. So an item that fails alone becomes a dead
letter (``db/dead_letters.py``) and is left out until its retry is due. The process caches the letters in memory: while nothing
fails, a step needs no extra statement.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from db import dead_letters
from db.dead_letters import Level
from db.sql import retry
from db.sql.connection import Connection
from objects import errors
from objects.text import clean_text
from service import metrics
from service.bisect import Isolated, Transient, isolate_failures
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

REFRESH_INTERVAL_S = 30.0
"""Seconds between reads of the letters, which other processes or an operator may change."""


class TransactionRunner(Protocol):
    """A database, or a cell with its timeouts."""

    @property
    def name(self) -> str: ...

    def read(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    def write(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T: ...


class _Held(NamedTuple):
    """A cached letter. ``due_items`` (next retry) and ``noted`` (last change): seconds of the monotonic clock."""

    tries: int
    due: float
    noted: float


class Quarantine:
    """The dead letters of one database. Runs steps without the items that are set aside. Thread-safe."""

    def __init__(self, place: TransactionRunner, level: Level, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._level: Level = level
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], _Held] = {}
        self._complaints = RateLimitedLog(LOG)
        metrics.DEAD_LETTERS.follow_reader(self._count_letters)

    @property
    def holds_letters(self) -> bool:
        """Whether this process knows of any letter."""
        return bool(self._held)

    def refresh_letters(self) -> None:
        """Read the letters. Call it when a process starts, and every ``REFRESH_INTERVAL_S``."""
        began = self._clock()
        if self._held:
            self._place.write(dead_letters.forget_stale, self._level)
        letters = self._place.read(dead_letters.list_all, self._level)
        read = {
            (letter.step, letter.key): _Held(letter.tries, float("inf") if letter.skipped else began + letter.wait, began)
            for letter in letters
        }
        with self._lock:
            self._held = read | {key: held for key, held in self._held.items() if held.noted > began}

    def run(
        self,
        step: str,
        work: Callable[[Sequence[T]], R],
        items: Sequence[T],
        *,
        key: Callable[[T], str] = str,
        transient: Transient = (errors.Transient,),
    ) -> Isolated[T, R]:
        """Call ``work`` with the items that are not set aside; set aside each item that fails alone.

        ``work`` and ``transient`` are as for ``isolate``. Raises ``transient`` errors.
        """
        due = self.due_items(step, items, key=key)
        done = isolate_failures(work, due, transient=transient)
        self.note_failed(step, {key(item): error for item, error in done.failed})
        if self._held:
            failed = {key(item) for item, _ in done.failed}
            self.note_succeeded(step, [name for name in map(key, due) if name not in failed])
        return done

    def due_items(self, step: str, items: Sequence[T], *, key: Callable[[T], str] = str) -> Sequence[T]:
        """The items without those that wait for a retry or are skipped."""
        if not self._held:
            return items
        now = self._clock()
        with self._lock:
            waiting = {name for (held_by, name), held in self._held.items() if held_by == step and held.due > now}
        return [item for item in items if dead_letters.key_of(key(item)) not in waiting] if waiting else items

    def due_keys(self, step: str) -> list[str]:
        """Keys of this step's letters that are due, for a step that does not read these items itself."""
        if not self._held:
            return []
        now = self._clock()
        with self._lock:
            return sorted(name for (held_by, name), held in self._held.items() if held_by == step and held.due <= now)

    def has_letters(self, step: str) -> bool:
        """Whether this process knows of letters of the step."""
        with self._lock:
            return any(held_by == step for held_by, _ in self._held)

    def seconds_until_retry(self, step: str, key: str) -> float:
        """Seconds until this item is retried; 0.0 if it is not set aside, infinite if it is skipped."""
        held = self._held.get((step, dead_letters.key_of(key)))
        return max(0.0, held.due - self._clock()) if held is not None else 0.0

    def note_failed(self, step: str, faults: Mapping[str, Exception]) -> None:
        """Set these items aside. Raises nothing: if the letters cannot be written, this process remembers them in memory."""
        if not faults:
            return
        now = self._clock()
        reasons = {key: reason_of(error) for key, error in faults.items()}
        for name, reason in reasons.items():
            metrics.SET_ASIDE.labels(step).inc()
            text = "%s: %s of %s cannot be processed and is set aside: %s; see 'superconductor dead-letter list'"
            about = (self._place.name, clean_text(name, 100), step, reason)
            self._complaints(f"{step} {reason.partition(':')[0]}", logging.ERROR, text, *about, exc_info=faults[name])
        with self._lock:
            for name in map(dead_letters.key_of, reasons):
                tries = self._held[step, name].tries + 1 if (step, name) in self._held else 1
                self._held[step, name] = _Held(tries, now + dead_letters.retry_wait(tries), now)
        try:
            self._place.write(dead_letters.put_letters, self._level, step, reasons)
        except Exception as error:  # noqa: BLE001 - the step goes on without the record; the error is logged
            self._complaints("put", logging.WARNING, "%s: a dead letter cannot be written: %s", self._place.name, reason_of(error))

    def note_succeeded(self, step: str, keys: Iterable[str]) -> None:
        """Remove the known letters of these items: they were processed, or need no processing any more."""
        with self._lock:
            known_names = sorted({name for name in map(dead_letters.key_of, keys) if (step, name) in self._held})
        if not known_names:
            return
        self._place.write(dead_letters.remove_letters, self._level, step, known_names)
        with self._lock:
            for name in known_names:
                self._held.pop((step, name), None)
        LOG.info("%s: processed %d items of %s that had been set aside", self._place.name, len(known_names), step)

    def _count_letters(self) -> metrics.Values:
        with self._lock:
            counts = Counter(step for step, _ in self._held)
        return [((self._place.name, step), number) for step, number in counts.items()]


def reason_of(error: Exception) -> str:
    """One line about the error, without the SQL statement and its parameters."""
    cause = retry.cause_of(error)
    return clean_text(f"{type(cause).__name__}: {' '.join(str(cause).split())}", dead_letters.REASON_SIZE)
