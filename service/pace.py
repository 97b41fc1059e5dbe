"""How often a loop runs: soon where something happens, rarely where nothing does."""

from __future__ import annotations

import math
import random
import threading
import time

GROWTH = 2.0
"""Factor by which a pause grows with each round in which nothing happened."""
JITTER = 0.1
"""Part by which a pause is longer or shorter at random, so that loops of many processes do not run at the same time."""


class Pace:
    """The pauses of one loop: ``busy`` seconds while something happens, otherwise twice as long each time, up to ``idle``.

    ``hurry`` is the doorbell: whoever causes something, or finds something, rings it. A loop that is pausing then runs within
    ``busy`` seconds. Without ``idle`` every pause is ``busy``. Thread-safe; times are seconds of the monotonic clock.
    """

    def __init__(self, busy: float, idle: float | None = None) -> None:
        self.busy = busy
        self.idle = max(busy, idle or 0.0)
        self._changed = threading.Condition()
        self._pause = busy
        self._busy_until = -math.inf
        self._is_busy = True
        self._is_woken = False
        self._due = time.monotonic()

    @property
    def due(self) -> float:
        """When the next round is due, or the last one was."""
        return self._due

    @property
    def is_idle(self) -> bool:
        """Whether nothing has happened for a while."""
        return self._pause > self.busy

    def hurry(self, lasting: float = 0.0) -> None:
        """Something happens: pause for ``busy`` seconds for the next ``lasting`` seconds, at least once."""
        with self._changed:
            now = time.monotonic()
            self._is_busy = True
            self._busy_until = max(self._busy_until, now + lasting)
            if self._due - now > self.busy:
                self._due = now + self.busy
                self._changed.notify_all()

    def wake(self) -> None:
        """End the pause now; if there is none, the next one ends at once."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def postpone(self) -> None:
        """Begin the pause anew: the next round is not needed yet."""
        with self._changed:
            if time.monotonic() < self._due:
                self._due = time.monotonic() + self._pause

    def begin(self) -> None:
        """A round begins: earlier calls of ``wake`` are answered by it."""
        with self._changed:
            self._is_woken = False
            self._due = time.monotonic()

    def wait(self) -> None:
        """Pause until the next round."""
        with self._changed:
            now = time.monotonic()
            if self._is_busy or now < self._busy_until:
                self._pause = self.busy
            else:
                self._pause = min(self.idle, self._pause * GROWTH)
            self._is_busy = False
            self._due = now + self._pause * random.uniform(1.0 - JITTER, 1.0 + JITTER)
            while not self._is_woken and (left := self._due - time.monotonic()) > 0.0:
                self._changed.wait(left)
