"""Threads for work that blocks: as few as there is work for, none while there is none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

LOG = logging.getLogger(__name__)

IDLE_SECONDS = 20.0
"""How long a thread without work stays: many agents share one process in an all-in-one, so idle ones must cost nothing."""


class OrderedWorkers:
    """Run submitted functions in order of arrival, at most ``limit`` at once, each in a daemon thread made when needed.

    (``ThreadPoolExecutor`` keeps every thread it made, and joins them at exit: one hung driver would hang the process.)
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._changed = threading.Condition(threading.Lock())
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._waiting = 0
        self._threads = 0
        self._idle = 0
        self._draining = 0
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Functions that no thread has taken yet."""
        return self._waiting

    @property
    def busy(self) -> int:
        """Threads at work."""
        return max(0, self._threads - self._idle)

    def submit(self, function: Callable[[], None]) -> None:
        """Queue ``function``; dropped once stopped."""
        with self._changed:
            if self._stopped:
                return
            self._waiting += 1
            self._queue.put(function)
            if self._waiting > self._idle and self._threads < self._limit:
                self._threads += 1
                self._idle += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()

    def drain(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until nothing is queued or running; return whether that came true."""
        with self._changed:
            self._draining += 1
            try:
                return self._changed.wait_for(lambda: not self._waiting and self._threads == self._idle, timeout)
            finally:
                self._draining -= 1

    def stop(self) -> None:
        """Drop what is queued, take nothing more. What is running ends in its own time."""
        with self._changed:
            self._stopped = True
            self._waiting = 0
            self._tell()
            for _ in range(self._threads):
                self._queue.put(None)

    def _run(self) -> None:
        while (function := self._next()) is not None:
            try:
                function()
            except Exception:  # the work after this one must still be done
                LOG.exception("%s: unexpected error", self._name)
            del function
            with self._changed:
                self._idle += 1
                self._tell()

    def _next(self) -> Callable[[], None] | None:
        """The next function; None: end. A thread that waits for one, or is about to, is idle."""
        while True:
            try:
                function = self._queue.get(timeout=IDLE_SECONDS)
            except Empty:
                function = None
            with self._changed:
                if function is None and self._waiting and not self._stopped:
                    continue  # something came in this very moment
                self._idle -= 1
                if function is not None and not self._stopped:
                    self._waiting -= 1
                    return function
                self._threads -= 1
                self._tell()
                return None

    def _tell(self) -> None:
        if self._draining:
            self._changed.notify_all()
