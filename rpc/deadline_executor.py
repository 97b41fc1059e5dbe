"""Run what may never return in a thread that may be left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Late(Exception):
    """The function did not end in time, or all threads are held by others that did not."""


class DeadlineExecutor:
    """At most ``limit`` daemon threads, made as needed and used again, that callers wait for only so long.

    Why not an executor of the standard library: the interpreter waits for its threads at exit, and a thread inside a library that
    retries for ever would keep the process from ending.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._waiting = 0
        """Jobs that no thread has taken."""
        self._threads = 0
        self._idle = 0

    def run(self, function: Callable[[], T], timeout: float, *, patience: float, check: Callable[[], object]) -> T:
        """Return or raise what ``function`` does.

        Raises Late after ``timeout`` seconds. Meanwhile ``check`` is called every ``patience`` seconds, and what it raises is
        raised here. In both cases a function under way is left to itself.
        """
        job = _Job(function)
        with self._lock:
            self._waiting += 1
            grows = self._waiting > self._idle and self._threads < self._limit
            if grows:
                self._threads += 1
                self._idle += 1
        self._jobs.put(job)
        if grows:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        end = time.monotonic() + timeout
        while not job.ended.acquire(timeout=max(0.0, min(patience, end - time.monotonic()))):
            try:
                if time.monotonic() >= end:
                    raise Late
                check()
            except BaseException:
                with self._lock:
                    job.given_up = True  # not begun: nobody shall. Under way: nobody will look at what comes of it
                raise
        if job.error is None:
            result: T = job.result
            return result
        try:
            raise job.error
        finally:
            del job  # it is in the error's own traceback

    def close(self) -> None:
        """Let idle threads end."""
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._jobs.put(None)

    def _work(self) -> None:
        """One thread's life. It counts as idle from before its caller hears of the end: it will take the next job."""
        while True:
            job = self._jobs.get()
            with self._lock:
                self._idle -= 1
                if job is None:
                    self._threads -= 1
                    return
                self._waiting -= 1
                begins = not job.given_up
            if begins:
                job.run()
            with self._lock:
                self._idle += 1
            job.ended.release()
            del job  # with what came of it, which may be much, while waiting for the next


class _Job:
    """A function, and what came of it once ``ended`` can be taken."""

    __slots__ = ("ended", "error", "function", "given_up", "result")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.ended = threading.Lock()
        self.ended.acquire()
        self.given_up = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.function()
        except BaseException as error:  # noqa: BLE001 - handed to the caller that waits, who raises it
            self.error = error
