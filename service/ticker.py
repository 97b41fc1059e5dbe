"""One thread that calls many functions, each when it is due: for parts of which one process has thousands."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from objects import errors
from service import health
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

RETRY_S = 1.0
"""Seconds until a function that failed is called again."""


class TickerCall:
    """A function that is called again and again, and when it is next due (monotonic seconds)."""

    __slots__ = ("due", "ended", "function")

    def __init__(self, function: Callable[[], float]) -> None:
        self.function = function
        self.due = 0.0
        self.ended = False


class Ticker:
    """Calls each function at once, and again when it has said: each returns the monotonic second at which it is next due.

    A function must return soon, because all others wait for it. An error postpones it, and is logged once in a while.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._queue: list[tuple[float, int, TickerCall]] = []
        """A heap. An entry whose time is not the ``due`` of its call is out of date."""
        self._stopping = False
        self._began: float | None = None
        """When the call under way began."""
        self._complaints = RateLimitedLog(LOG)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Ticker:
        self._thread.start()
        health.BOARD.watch_part(self)
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """End the thread after the call under way."""
        health.BOARD.forget_part(self)
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def add_function(self, function: Callable[[], float]) -> TickerCall:
        """Call ``function`` from now on, until its call is removed."""
        call = TickerCall(function)
        self.wake_call(call)
        return call

    def wake_call(self, call: TickerCall) -> None:
        """Call it now; again if it is being called."""
        with self._changed:
            self._put_call(call, time.monotonic())
            self._changed.notify()

    def remove_call(self, call: TickerCall) -> None:
        """Do not call it again."""
        call.ended = True

    def find_trouble(self) -> str:
        """Why nothing more is called; empty if it is."""
        if not self._thread.is_alive() and not self._stopping:
            return "its thread has ended"
        began = self._began
        lasts = 0.0 if began is None else time.monotonic() - began
        return f"a call has not ended for {lasts:.0f} s" if lasts > health.BOARD.stuck else ""

    def _put_call(self, call: TickerCall, due: float) -> None:
        call.due = due
        heapq.heappush(self._queue, (due, next(self._numbers), call))

    def _run(self) -> None:
        while (call := self._next_call()) is not None:
            due = call.due
            self._began = time.monotonic()
            following = self._call(call)
            self._began = None
            with self._changed:
                if call.due == due:  # otherwise it was woken meanwhile
                    self._put_call(call, following)

    def _next_call(self) -> TickerCall | None:
        """Wait for the call that is due first. None: stop."""
        with self._changed:
            while not self._stopping:
                if not self._queue:
                    self._changed.wait()
                    continue
                due, _, call = self._queue[0]
                if call.ended or call.due != due:
                    heapq.heappop(self._queue)
                elif (pause := due - time.monotonic()) > 0.0:
                    self._changed.wait(pause)
                else:
                    heapq.heappop(self._queue)
                    return call
            return None

    def _call(self, call: TickerCall) -> float:
        try:
            return call.function()
        except Exception as error:  # noqa: BLE001 - the other functions must be called all the same; the error is logged
            text = f"{type(error).__name__}: {error}"
            trace = None if isinstance(error, errors.SuperconductorError) else error
            self._complaints(text, logging.WARNING, "%s: %s", self.name, text, exc_info=trace)
            return time.monotonic() + RETRY_S
