"""A small bounded pool of threads for calls that may hang."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R", covariant=True)


class BulkheadCall(Generic[R]):
    """One call, run by a worker; ``wait`` gives its result to the caller who asked for it."""

    def __init__(self, call: Callable[[], R]) -> None:
        self._call = call
        self._done = threading.Event()
        self._result: R
        self._error: BaseException | None = None
        self.abandoned = False  # running, but nobody waits for it; guarded by the pool's lock

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread by result()
            self._error = error
        self._done.set()

    def wait(self, timeout: float) -> bool:
        """Whether the call ended within ``timeout`` seconds."""
        return self._done.wait(max(timeout, 0.0))

    def result(self) -> R:
        """What the finished call returned; or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result


class BulkheadWorkers:
    """At most ``size`` threads that are of use, started when needed and ended after ``idle`` seconds without work.

    Unlike those of concurrent.futures the threads are daemons, because a call frozen in a dead server must not keep the process
    from ending. A worker whose caller has given up is replaced, so that the resource can be tried again although the old call
    hangs; that happens at most ``size`` times, which bounds the threads at twice ``size`` in the worst case.
    """

    def __init__(self, name: str, size: int, idle: float = 30.0) -> None:
        self._name = name
        self._size = size
        self._idle_time = idle
        self._changed = threading.Condition(threading.Lock())
        self._jobs: deque[BulkheadCall[object]] = deque()
        self._threads = 0
        self._idle = 0
        self._lost = 0
        self._closed = False

    @property
    def threads(self) -> int:
        return self._threads

    def submit(self, call: Callable[[], T]) -> BulkheadCall[T]:
        """Queue the call. It starts at once unless all workers are busy."""
        job = BulkheadCall(call)
        with self._changed:
            self._jobs.append(job)
            self._staff()
        return job

    def give_up(self, job: BulkheadCall[object]) -> bool:
        """The caller waits no longer. Return whether the call had been started, so that its effects are unknown."""
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
                return False
            if not job.wait(0):
                job.abandoned = True
                self._lost += 1
                self._staff()
            return True

    def close(self) -> None:
        """Let the threads end when what they run has ended; queued calls are still run."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _staff(self) -> None:
        """See that somebody takes the queued jobs. Called with the lock held."""
        if self._idle:
            self._changed.notify()
        if len(self._jobs) > self._idle and self._useful() < self._size:
            self._threads += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()

    def _useful(self) -> int:
        return self._threads - min(self._lost, self._size)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            with self._changed:
                if job.abandoned:
                    self._lost -= 1
                if self._useful() > self._size:  # was replaced while it hung
                    self._threads -= 1
                    return

    def _next(self) -> BulkheadCall[object] | None:
        with self._changed:
            while not self._jobs:
                self._idle += 1
                called = not self._closed and self._changed.wait(self._idle_time)
                self._idle -= 1
                if not self._jobs and not called:
                    self._threads -= 1
                    return None
            return self._jobs.popleft()
