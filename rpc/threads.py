"""Threads that handle messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

UNDER_WAY_SIZE = 32 * 1024 * 1024
"""Bytes of messages that may be handled at the same time. A larger one is handled while no other is."""


class Threads:
    """At most ``max_workers`` threads, made as there is work for them, for functions whose results nobody asks for.

    In the shape that oslo.messaging asks of an executor. (The standard library's makes a future with a condition and two locks for
    each message, which nobody ever looks at; oslo.messaging's own takes a second to stop.)
    """

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        self.limit = max_workers
        self._name = thread_name_prefix
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._jobs: SimpleQueue[tuple[Callable[..., object], tuple[object, ...], int] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        self._idle = 0
        self._size = 0
        self._full_since: float | None = None

    def wait_for_room(self, size: int, timeout: float) -> bool:
        """Wait until a thread is free for a message of ``size`` bytes. Returns whether one is. For one caller at a time."""
        with self._room:
            if not self._has_room(size):
                if self._full_since is None:
                    self._full_since = time.monotonic()
                if not self._room.wait_for(lambda: self._has_room(size), timeout):
                    return False
            self._full_since = None
            return True

    @property
    def lag(self) -> float:
        """Seconds since a message waits for a thread; 0 if none does."""
        since = self._full_since
        return 0.0 if since is None else time.monotonic() - since

    def submit(self, function: Callable[..., object], *arguments: object, size: int = 0) -> None:
        """Call ``function``, which must raise nothing, as soon as a thread is free. ``size``: bytes that it is given."""
        with self._lock:
            self._waiting += 1
            self._size += size
            if self._waiting > self._idle and len(self._threads) < self.limit:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                self._idle += 1
                thread.start()
        self._jobs.put((function, arguments, size))

    def shutdown(self, wait: bool = True) -> None:
        """End, after all that was submitted; with ``wait`` return no sooner."""
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._jobs.put(None)
        if wait:
            for thread in threads:
                thread.join()

    def _has_room(self, size: int) -> bool:
        free = self._waiting < self._idle or len(self._threads) < self.limit
        return free and (not self._size or self._size + size <= UNDER_WAY_SIZE)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, arguments, size = job
            with self._lock:
                self._waiting -= 1
                self._idle -= 1
            function(*arguments)
            del job, function, arguments  # with the message, while waiting for the next
            with self._lock:
                self._idle += 1
                self._size -= size
                if self._full_since is not None:
                    self._room.notify()
