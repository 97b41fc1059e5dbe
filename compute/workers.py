"""Threads for work that blocks: as few as there is work for, none while there is none."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

LOG = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
"""How long a thread without work stays: many agents share one process in an all-in-one, so idle ones must cost nothing."""


class Workers:
    """Run submitted functions in order of arrival, at most ``limit`` at once, each in a daemon thread made when needed.

    (``ThreadPoolExecutor`` keeps every thread it made, and joins them at exit: one hung driver would hang the process.)
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._changed = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Functions that no thread has taken yet."""
        return len(self._queue)

    @property
    def busy(self) -> int:
        """Threads at work."""
        return max(0, self._threads - self._idle)

    def submit(self, function: Callable[[], None]) -> None:
        """Queue ``function``; dropped once stopped."""
        with self._changed:
            if self._stopped:
                return
            self._queue.append(function)
            if len(self._queue) > self._idle and self._threads < self._limit:
                self._threads += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()
            elif self._idle:
                self._changed.notify()

    def drain(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until nothing is queued or running; return whether that came true."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and self._threads == self._idle, timeout)

    def stop(self) -> None:
        """Drop what is queued, take nothing more. What is running ends in its own time."""
        with self._changed:
            self._stopped = True
            self._queue.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while (function := self._next()) is not None:
            try:
                function()
            except Exception:  # the work after this one must still be done
                LOG.exception("%s: unexpected error", self._name)

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.notify_all()  # for drain
            woken = self._changed.wait_for(lambda: self._queue or self._stopped, IDLE_SECONDS)
            self._idle -= 1
            if woken and self._queue:
                return self._queue.popleft()
            self._threads -= 1
            self._changed.notify_all()
            return None
