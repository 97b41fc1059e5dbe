"""Run what may never return in a thread that may be left behind."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Late(Exception):
    """The function did not end in time, or all threads are held by others that did not."""


class Guard:
    """At most ``limit`` daemon threads, made as needed and used again, that callers wait for only so long.

    Why not an executor of the standard library: the interpreter waits for its threads at exit, and a thread inside a library that
    retries for ever would keep the process from ending.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def run(self, function: Callable[[], T], timeout: float, *, patience: float, check: Callable[[], object]) -> T:
        """Return or raise what ``function`` does.

        Raises Late after ``timeout`` seconds. Meanwhile ``check`` is called every ``patience`` seconds, and what it raises is
        raised here. In both cases a function under way is left to itself.
        """
        future: Future[T] = Future()
        with self._changed:
            self._jobs.append((function, future))
            if self._idle >= len(self._jobs):
                self._changed.notify()
            elif self._threads < self._limit:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        end = time.monotonic() + timeout
        while not _done(future, min(patience, end - time.monotonic())):
            try:
                if time.monotonic() >= end:
                    raise Late
                check()
            except BaseException:
                self._give_up(function, future)
                raise
        return future.result()

    def _give_up(self, function: Callable[[], Any], future: Future[Any]) -> None:
        """Not begun: nobody shall. Under way: nobody will look at what comes of it."""
        with self._changed:
            if (function, future) in self._jobs:
                self._jobs.remove((function, future))

    def close(self) -> None:
        """Let idle threads end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._jobs and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._jobs:
                    self._threads -= 1
                    return
                function, future = self._jobs.popleft()
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - handed to the caller that waits, who raises it
                future.set_exception(error)


def _done(future: Future[Any], timeout: float) -> bool:
    try:
        future.exception(max(0.0, timeout))
    except TimeoutError:  # of the wait: what the function raised is returned here
        return False
    return True
