"""The worker pool: it has only as many threads as there is work, and none keeps the process from ending."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from service.threads import start_daemon

LOG = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", covariant=True)

IDLE_S = 20.0
"""Seconds that an idle thread stays. Many agents share one process in an all-in-one, so idle threads must not accumulate."""


class PoolTimeout(Exception):
    """A call did not end in time, or calls that did not end hold all threads."""


class PoolCall(Generic[R]):
    """A submitted function. Call ``wait_end`` before ``get_result``."""

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

    def wait_end(self, timeout: float) -> bool:
        """Whether the call has ended within ``timeout`` seconds."""
        ended = self._ended.acquire(timeout=max(timeout, 0.0))
        if ended:
            self._ended.release()
        return ended

    def get_result(self) -> R:
        """The function's result; raises the function's error. Call this only after the function has ended."""
        if self._error is None:
            result: R = self._result
            return result
        try:
            raise self._error
        finally:
            del self  # breaks the reference cycle with the error's traceback

    def run(self) -> None:
        """Called by the pool's threads."""
        try:
            self._result = self._function(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - result() raises it again
            self._error = error

    def mark_ended(self) -> None:
        """Called by the pool: wake the callers that wait."""
        self._ended.release()


class WorkerPool:
    """Runs functions in order of arrival, at most ``size`` at once, each in a daemon thread that is created on demand.

    (The interpreter joins threads of ``concurrent.futures`` when it ends, so one call that hangs in a library would keep the
    process from ending. These threads also never end while idle.)

    A caller that gives up a hanging call leaves its thread behind. At most ``spare`` such threads are replaced, so that the cause
    can be tried again; there are at most ``size + spare`` threads. Each ends after ``idle`` seconds without work. Thread-safe.
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
        """Threads that wait for a call or are about to."""
        self._lost = 0
        """Threads whose callers have given up."""
        self._weight = 0
        self._watchers = 0
        self._dropping = False

    # -- state -----------------------------------------------------------------------------------------------------------------

    @property
    def thread_count(self) -> int:
        return self._threads

    @property
    def waiting_count(self) -> int:
        """Calls that no thread has taken yet."""
        return self._waiting

    @property
    def busy_count(self) -> int:
        """Threads at work."""
        return max(0, self._threads - self._idle)

    @property
    def total_weight(self) -> int:
        """The total weight of the calls that wait or run, as given to ``submit_call``."""
        return self._weight

    @property
    def has_free_thread(self) -> bool:
        """Whether a call submitted now would begin at once."""
        return self._waiting < self._idle or self._useful_threads < self._size

    def wait_for(self, state: Callable[[], bool], timeout: float | None) -> bool:
        """Wait up to ``timeout`` seconds until ``state()`` is true, and return whether it is. It may read the properties above."""
        with self._changed:
            self._watchers += 1
            try:
                return self._changed.wait_for(state, timeout)
            finally:
                self._watchers -= 1

    def drain_calls(self, timeout: float | None) -> bool:
        """Wait up to ``timeout`` seconds until nothing is queued or running; return whether that is so."""
        return self.wait_for(lambda: not self._waiting and self._threads == self._idle, timeout)

    # -- work ----------------------------------------------------------------------------------------------------------------

    def submit_call(self, function: Callable[..., T], *arguments: object, weight: int = 0) -> PoolCall[T]:
        """Queue ``function``; it begins at once unless all threads are busy. After ``stop`` it never begins."""
        call = PoolCall(function, arguments, weight)
        with self._changed:
            if not self._dropping:
                self._waiting += 1
                self._weight += weight
                self._calls.put(call)
                try:
                    self._start_thread_if_needed()
                except (RuntimeError, MemoryError):
                    self._withdraw_call(call)
                    raise
        return call

    def post_call(self, function: Callable[..., object], *arguments: object) -> None:
        """Like ``submit_call``, if the caller does not need the result. An error is logged."""
        self.submit_call(self._log_errors_of, function, *arguments)

    def give_up(self, call: PoolCall[object]) -> bool:
        """The caller no longer waits for ``call``. Return whether it had begun: its effects are then unknown. Otherwise it
        never begins.
        """
        with self._changed:
            if not call.begun:
                self._withdraw_call(call)
                return False
            if not call.abandoned and not call.wait_end(0):
                call.abandoned = True
                self._lost += 1
                self._start_thread_if_needed()
            return True

    def run(self, function: Callable[[], T], timeout: float, *, patience: float, check: Callable[[], object]) -> T:
        """Return or raise what ``function`` does, in bounded time.

        Raises PoolTimeout after ``timeout`` seconds. Meanwhile ``check`` is called every ``patience`` seconds, and its errors are
        raised here. In both cases a running function continues on its own.
        """
        end = time.monotonic() + timeout
        call = self.submit_call(function)
        try:
            while not call.wait_end(min(patience, end - time.monotonic())):
                if time.monotonic() >= end:
                    raise PoolTimeout
                check()
        except BaseException:
            self.give_up(call)
            raise
        return call.get_result()

    def close(self) -> None:
        """End each thread when all submitted calls have ended. A closed pool still runs new calls."""
        with self._changed:
            for _ in range(self._threads):
                self._calls.put(None)

    def stop(self) -> None:
        """Drop queued calls and accept no more. Running calls are not interrupted."""
        with self._changed:
            self._dropping = True
            self._waiting = self._weight = 0
            self._notify_watchers()
        self.close()

    # -- threads -------------------------------------------------------------------------------------------------------------

    def _withdraw_call(self, call: PoolCall[Any]) -> None:
        """The call, which has not begun, never begins. The caller holds the lock."""
        if not call.given_up and not self._dropping:
            self._waiting -= 1
            self._weight -= call.weight
            self._notify_watchers()
        call.given_up = True

    @property
    def _useful_threads(self) -> int:
        return self._threads - min(self._lost, self._spare)

    def _start_thread_if_needed(self) -> None:
        """Start a thread if queued calls need one. The caller holds the lock.

        If the system has no room for it, a thread that is there takes the calls. Raises RuntimeError if none is.
        """
        if self._waiting > self._idle and self._useful_threads < self._size:
            thread = start_daemon(f"{self._name}-{self._threads + 1}", self._work_until_stopped)
            if thread is None:
                if not self._threads:
                    raise RuntimeError(f"{self._name}: no thread can be started")
                return
            self._threads += 1
            self._idle += 1

    def _work_until_stopped(self) -> None:
        """The loop of one thread. It counts as idle before its caller is woken: it will take the next call."""
        while (call := self._take_call()) is not None:
            call.run()
            with self._changed:
                self._lost -= call.abandoned
                if not self._dropping:
                    self._weight -= call.weight
                surplus = self._useful_threads > self._size  # this thread was replaced while it hung
                if surplus:
                    self._threads -= 1
                else:
                    self._idle += 1
                self._notify_watchers()
                call.mark_ended()
            del call  # its result may be large and must not stay in memory while waiting
            if surplus:
                return

    def _take_call(self) -> PoolCall[object] | None:
        """The next call; None ends the thread."""
        while True:
            try:
                call = self._calls.get(timeout=self._idle_s)
                ends = call is None
            except Empty:
                call, ends = None, False
            with self._changed:
                if call is None and not ends and self._waiting and not self._dropping:
                    continue  # a call was queued at this moment
                if call is not None and call.given_up and not self._dropping:
                    continue
                self._idle -= 1
                if call is not None and not self._dropping:
                    self._waiting -= 1
                    call.begun = True
                    return call
                self._threads -= 1
                self._start_thread_if_needed()  # the order to end may be older than the last call
                self._notify_watchers()
                return None

    def _notify_watchers(self) -> None:
        if self._watchers:
            self._changed.notify_all()

    def _log_errors_of(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception:  # the thread must go on to the next call
            LOG.exception("%s: unexpected error", self._name)
