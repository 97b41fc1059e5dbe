"""Threads that handle messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Threads:
    """At most ``max_workers`` threads, made as there is work for them, for functions whose results nobody asks for.

    In the shape that oslo.messaging asks of an executor. (The standard library's makes a future with a condition and two locks for
    each message, which nobody ever looks at; oslo.messaging's own takes a second to stop.)
    """

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        self._limit = max_workers
        self._name = thread_name_prefix
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        self._idle = 0

    def submit(self, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function``, which must raise nothing, as soon as a thread is free."""
        with self._lock:
            self._waiting += 1
            if self._waiting > self._idle and len(self._threads) < self._limit:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                self._idle += 1
                thread.start()
        self._jobs.put(lambda: function(*arguments))

    def shutdown(self, wait: bool = True) -> None:
        """End, after all that was submitted; with ``wait`` return no sooner."""
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._jobs.put(None)
        if wait:
            for thread in threads:
                thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                self._waiting -= 1
                self._idle -= 1
            job()
            del job  # with the message, while waiting for the next
            with self._lock:
                self._idle += 1
