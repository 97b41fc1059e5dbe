"""How often a loop runs: soon where something happens, rarely where nothing does."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable

GROWTH = 2.0
"""Factor by which a pause grows with each round in which nothing happened."""
JITTER = 0.1
"""Part by which a pause is longer or shorter at random, so that loops of many processes do not run at the same time."""
REST_FACTOR = 4.0
"""An adaptive loop pauses for so many times as long as its round took, so that it takes a fifth of a thread's time at most."""
LONGEST_REST_FACTOR = 8.0
"""Longest such pause, in busy pauses."""


class Pace:
    """The pauses of one loop: ``busy`` seconds while something happens, otherwise twice as long each time, up to ``idle``.

    ``hurry_for`` is the doorbell: whoever causes something, or finds something, rings it. A loop that is pausing then runs within
    ``busy`` seconds. Without ``idle`` every pause is ``busy``. Thread-safe; times are seconds of the monotonic clock.

    With ``idle``, a pause is not shorter than ``REST_FACTOR`` times the round before it, up to ``LONGEST_REST_FACTOR`` times
    ``busy``. On an overloaded machine, loops that only look then leave the time to what was asked for.
    """

    def __init__(self, busy_pause: float, idle: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.busy = busy_pause
        self.idle = max(busy_pause, idle or 0.0)
        self._changed = threading.Condition()
        self._pause = busy_pause
        self._busy_until = -math.inf
        self._is_busy = True
        self._is_woken = False
        self._is_failing = False
        self._due = self._rested = self._clock()

    @property
    def next_due(self) -> float:
        """When the next round is due, or the last one was."""
        return self._due

    @property
    def is_idle(self) -> bool:
        """Whether nothing has happened for a while."""
        return self._pause > self.busy

    def hurry_for(self, lasting: float = 0.0) -> None:
        """Something happens: pause for ``busy`` seconds for the next ``lasting`` seconds, at least once."""
        with self._changed:
            now = self._clock()
            self._is_busy = True
            self._busy_until = max(self._busy_until, now + lasting)
            soon = max(now + self.busy, self._rested)
            if soon < self._due:
                self._due = soon
                self._changed.notify_all()

    def note_failure(self) -> None:
        """The round has failed: pause for ``busy`` seconds, however long it took."""
        with self._changed:
            self._is_failing = True
        self.hurry_for()

    def wake_now(self) -> None:
        """End the pause now; if there is none, the next one ends at once."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def postpone_round(self) -> None:
        """Begin the pause anew: the next round is not needed yet."""
        with self._changed:
            if self._clock() < self._due:
                self._due = self._clock() + self._pause

    def begin_round(self) -> None:
        """A round begins: earlier calls of ``wake_now`` are answered by it."""
        with self._changed:
            self._is_woken = self._is_failing = False
            self._due = self._rested = self._clock()

    def wait_round(self) -> None:
        """Pause until the next round."""
        with self._changed:
            now = self._clock()
            if self._is_busy or now < self._busy_until:
                self._pause = self.busy
            else:
                self._pause = min(self.idle, self._pause * GROWTH)
            self._is_busy = False
            self._rested = now + self._rest_seconds(now - self._due)
            self._due = max(self._rested, now + self._pause * random.uniform(1.0 - JITTER, 1.0 + JITTER))
            while not self._is_woken and (remaining := self._due - self._clock()) > 0.0:
                self._changed.wait(remaining)

    def _rest_seconds(self, took: float) -> float:
        """Least seconds to pause after a round that took so long."""
        if self._is_failing or self.idle == self.busy:
            return 0.0
        return min(REST_FACTOR * took, LONGEST_REST_FACTOR * self.busy, self.idle)
