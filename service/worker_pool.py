"""The one pool of threads: as few as there is work for, none that keeps the process from ending."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

LOG = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", covariant=True)

IDLE_S = 20.0
"""Seconds that a thread without work stays: many agents share one process in an all-in-one, so idle ones must cost nothing."""


class Late(Exception):
    """A call did not end in time, or all threads are held by others that did not."""


class PoolCall(Generic[R]):
    """A function that was submitted. Whoever asks for its outcome waits for it first."""

    __slots__ = ("_arguments", "_ended", "_error", "_function", "_result", "abandoned", "begun", "given_up", "weight")

    def __init__(self, function: Callable[..., R], arguments: tuple[object, ...], weight: int) -> None:
        self._function = function
        self._arguments = arguments
        self._ended = threading.Lock()
        self._ended.acquire()
        self._error: BaseException | None = None
        self._result: Any = None
        self.weight = weight
        self.begun = self.given_up = self.abandoned = False  # guarded by the pool's lock

    def wait(self, timeout: float) -> bool:
        """Whether it has ended within ``timeout`` seconds."""
        ended = self._ended.acquire(timeout=max(timeout, 0.0))
        if ended:
            self._ended.release()
        return ended

    def result(self) -> R:
        """What the function returned; raises what it raised. Only once it has ended."""
        if self._error is None:
            result: R = self._result
            return result
        try:
            raise self._error
        finally:
            del self  # it is in the error's own traceback

    def run(self) -> None:
        """For the pool's threads."""
        try:
            self._result = self._function(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - raised again for who asks for the result
            self._error = error

    def end(self) -> None:
        """For the pool: let go who waits."""
        self._ended.release()


class WorkerPool:
    """Runs functions in order of arrival, at most ``size`` at once, each in a daemon thread that is made when it is needed.

    (Threads of ``concurrent.futures`` are joined when the interpreter ends: one call that hangs in a library would keep the process
    from ending. They also stay once they were made.)

    Who gives up a call that hangs leaves a thread behind. At most ``spare`` of those are replaced, so that what they hang in can be
    tried again; so there are at most ``size + spare`` threads. Each ends after ``idle`` seconds without work. Safe for threads.
    """

    def __init__(self, name: str, size: int, *, spare: int = 0, idle: float = IDLE_S) -> None:
        self._name = name
        self._size = size
        self._spare = spare
        self._idle_s = idle
        self._changed = threading.Condition(threading.Lock())
        self._calls: SimpleQueue[PoolCall[object] | None] = SimpleQueue()
        self._waiting = 0
        self._threads = 0
        self._idle = 0
        """Threads that wait for a call, or are about to."""
        self._lost = 0
        """Threads whose callers have given up."""
        self._weight = 0
        self._watchers = 0
        self._dropping = False

    # -- what there is -------------------------------------------------------------------------------------------------------

    @property
    def threads(self) -> int:
        return self._threads

    @property
    def waiting(self) -> int:
        """Calls that no thread has taken yet."""
        return self._waiting

    @property
    def busy(self) -> int:
        """Threads at work."""
        return max(0, self._threads - self._idle)

    @property
    def weight(self) -> int:
        """What the calls that wait or run weigh in all, as they were submitted."""
        return self._weight

    @property
    def has_free_thread(self) -> bool:
        """Whether a call that came now would begin at once."""
        return self._waiting < self._idle or self._useful < self._size

    def wait_for(self, state: Callable[[], bool], timeout: float | None) -> bool:
        """Wait up to ``timeout`` seconds until ``state``, which may ask for the properties above; return whether that came true."""
        with self._changed:
            self._watchers += 1
            try:
                return self._changed.wait_for(state, timeout)
            finally:
                self._watchers -= 1

    def drain(self, timeout: float | None) -> bool:
        """Wait up to ``timeout`` seconds until nothing is queued or running; return whether that came true."""
        return self.wait_for(lambda: not self._waiting and self._threads == self._idle, timeout)

    # -- work ----------------------------------------------------------------------------------------------------------------

    def submit(self, function: Callable[..., T], *arguments: object, weight: int = 0) -> PoolCall[T]:
        """Queue ``function``; it begins at once unless all threads are busy. After ``stop`` it never does."""
        call = PoolCall(function, arguments, weight)
        with self._changed:
            if not self._dropping:
                self._waiting += 1
                self._weight += weight
                self._calls.put(call)
                self._staff()
        return call

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """The same for what nobody asks about. An error is logged."""
        self.submit(self._logged, function, *arguments)

    def give_up(self, call: PoolCall[object]) -> bool:
        """Nobody waits for ``call`` any longer. Return whether it had begun: its effects are unknown then. Else it never will."""
        with self._changed:
            if not call.begun:
                if not call.given_up and not self._dropping:
                    self._waiting -= 1
                    self._weight -= call.weight
                    self._tell()
                call.given_up = True
                return False
            if not call.abandoned and not call.wait(0):
                call.abandoned = True
                self._lost += 1
                self._staff()
            return True

    def run(self, function: Callable[[], T], timeout: float, *, patience: float, check: Callable[[], object]) -> T:
        """Return or raise what ``function`` does, in bounded time.

        Raises Late after ``timeout`` seconds. Meanwhile ``check`` is called every ``patience`` seconds, and what it raises is
        raised here. In both cases a function under way is left to itself.
        """
        end = time.monotonic() + timeout
        call = self.submit(function)
        try:
            while not call.wait(min(patience, end - time.monotonic())):
                if time.monotonic() >= end:
                    raise Late
                check()
        except BaseException:
            self.give_up(call)
            raise
        return call.result()

    def close(self) -> None:
        """Let the threads end when all that was submitted has ended. A pool that is closed still runs what it is given."""
        with self._changed:
            for _ in range(self._threads):
                self._calls.put(None)

    def stop(self) -> None:
        """Drop what is queued and take nothing more. What is running ends in its own time."""
        with self._changed:
            self._dropping = True
            self._waiting = self._weight = 0
            self._tell()
        self.close()

    # -- threads -------------------------------------------------------------------------------------------------------------

    @property
    def _useful(self) -> int:
        return self._threads - min(self._lost, self._spare)

    def _staff(self) -> None:
        """See that somebody takes what is queued. With the lock held."""
        if self._waiting > self._idle and self._useful < self._size:
            threading.Thread(target=self._work, name=f"{self._name}-{self._threads + 1}", daemon=True).start()
            self._threads += 1
            self._idle += 1

    def _work(self) -> None:
        """One thread's life. It counts as idle from before its caller hears of the end: it will take the next call."""
        while (call := self._take()) is not None:
            call.run()
            with self._changed:
                self._lost -= call.abandoned
                if not self._dropping:
                    self._weight -= call.weight
                surplus = self._useful > self._size  # was replaced while it hung
                if surplus:
                    self._threads -= 1
                else:
                    self._idle += 1
                self._tell()
                call.end()
            del call  # with what came of it, which may be much, while waiting for the next
            if surplus:
                return

    def _take(self) -> PoolCall[object] | None:
        """The next call; None: end."""
        while True:
            try:
                call = self._calls.get(timeout=self._idle_s)
                ends = call is None
            except Empty:
                call, ends = None, False
            with self._changed:
                if call is None and not ends and self._waiting and not self._dropping:
                    continue  # something came in this very moment
                if call is not None and call.given_up and not self._dropping:
                    continue
                self._idle -= 1
                if call is not None and not self._dropping:
                    self._waiting -= 1
                    call.begun = True
                    return call
                self._threads -= 1
                self._staff()  # it may have been told to end before what came last
                self._tell()
                return None

    def _tell(self) -> None:
        if self._watchers:
            self._changed.notify_all()

    def _logged(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception:  # the work after this one must still be done
            LOG.exception("%s: unexpected error", self._name)
