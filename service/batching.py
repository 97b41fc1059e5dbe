"""Batch items that arrive at the same time: ``GroupCommit`` for callers that wait for a result, ``RoundBatcher`` for others."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from objects import errors
from service.bisect import Transient, isolate_failures
from service.worker_pool import WorkerPool

LOG = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

RECENT_GROUPS = 3
"""Recent groups, used to estimate the size of the next one."""
RECENT_ROUNDS = 4
"""Recent rounds, used to estimate how long a round takes."""


class GroupCommit(Generic[T, R]):
    """Callable that hands single items to ``handle`` in groups and returns each caller its own result.

    The first caller of a group leads it and runs ``handle`` in its own thread. It waits until the previous group has ended. It then
    waits for ``window`` seconds more, or until as many items have arrived as in recent groups. If recent groups had one item each,
    it waits for ``window`` only with ``patient``.

    ``handle`` gets a list and returns as many results in the same order. A result that is an exception is raised in its caller.

    If ``handle`` raises, it must have changed nothing. It is then called with each half of the group, and so on, until only the
    items at fault get the exception (``service/bisect.py``). An error in ``transient`` goes to all callers.

    Used for group commit: under load, groups grow while callers wait for the previous group.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[T]], Sequence[R | Exception]],
        *,
        window: float = 0.0,
        limit: int = 500,
        patient: bool = True,
        transient: Transient = (errors.Transient,),
    ) -> None:
        self._handle = handle
        self._transient = transient
        self._window = window
        self._limit = limit
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._waiting: list[tuple[T, Future[R]]] = []
        self._sizes: deque[int] = deque([1], maxlen=RECENT_GROUPS)
        self._least = 2 if patient else 1
        self._expected = self._least
        self._all_there = threading.Event()

    def __call__(self, item: T) -> R:
        future: Future[R] = Future()
        with self._lock:
            self._waiting.append((item, future))
            if len(self._waiting) >= self._expected:
                self._all_there.set()
            leads = len(self._waiting) == 1 or len(self._waiting) > self._limit
        if leads:
            with self._turn:
                if self._window and self._expected > 1 and not future.done():
                    self._all_there.wait(self._window)
                self._run()
        return future.result()

    def _run(self) -> None:
        with self._lock:
            group, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
            followers = bool(self._waiting)
            if group:
                self._sizes.append(len(group))
                self._expected = max(self._least, *self._sizes)
            self._all_there.clear()
        if not group:
            return
        try:
            done = isolate_failures(self._answer_group, group, transient=self._transient)
            for (_, future), error in done.failed:
                future.set_exception(error)
        except Exception as error:  # noqa: BLE001 - handed to every caller that waits, who raises it
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
        if followers:
            self._run()

    def _answer_group(self, group: Sequence[tuple[T, Future[R]]]) -> None:
        for (_, future), result in list(zip(group, self._handle([item for item, _ in group]), strict=True)):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


class RoundBatcher(Generic[T]):
    """Handle items in rounds, each with all items added since the previous round. Callers of ``add_items`` do not wait.

    If no round is running, the next one begins at once, but no earlier than ``pace`` seconds after the previous one began. While a
    round is running, the next one collects items for ``patience`` seconds, or for twice the duration of recent rounds, at most
    ``longest``. It then begins beside the running one, so a slow or blocked round delays the others no longer than that. (When the
    machine is busy, rounds should not overlap: smaller rounds cost more, and all of them would take longer.)

    At most ``workers`` rounds run at a time, each with at most ``limit`` items. At most ``most`` items wait; more are dropped.
    Errors of ``handle`` are logged. Dropped or failed items are still in database rows, where the sweeps find them.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Sequence[T]], None],
        *,
        pace: float,
        patience: float = 0.25,
        longest: float = 1.0,
        workers: int = 1,
        limit: int = 50,
        most: int = 100_000,
    ) -> None:
        self._name = name
        self._handle = handle
        self._pace = pace
        self._patience = patience
        self._longest = longest
        self._took: deque[float] = deque([0.0], maxlen=RECENT_ROUNDS)
        self._workers = workers
        self._limit = limit
        self._most = most
        self._changed = threading.Condition()
        self._waiting: dict[T, None] = {}
        self._rounds = 0
        self._ready = 0
        """Threads that wait for their round to begin."""
        self._began = -math.inf
        self._stopping = False
        self._pool = WorkerPool(name, workers)

    def add_items(self, items: Sequence[T]) -> None:
        """Handle these items soon. An item that already waits is handled once. After ``stop`` items are ignored."""
        with self._changed:
            if self._stopping:
                return
            if len(self._waiting) + len(items) > self._most:
                LOG.debug("%s: the queue is full, %d items are left to the sweeps", self._name, len(items))
                return
            self._waiting |= dict.fromkeys(items)
            self._start_threads()
            self._changed.notify_all()

    def stop(self) -> None:
        """Begin no more rounds, and wait for the running ones."""
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify_all()
        self._pool.close()
        self._pool.drain_calls(None)

    def _start_threads(self) -> None:
        """Start a thread for the next round if one is needed and allowed. The caller holds the lock."""
        if self._waiting and not self._ready and self._rounds < self._workers:
            self._ready += 1
            try:
                self._pool.post_call(self._run)
            except (RuntimeError, MemoryError):  # the pool has logged it; the next items try again, or the sweeps find the rows
                self._ready -= 1

    def _run(self) -> None:
        """Run rounds, one after the other, as long as items wait."""
        while items := self._next_round():
            began = time.monotonic()
            try:
                self._handle(items)
            except errors.SuperconductorError as error:
                LOG.warning("%s: %s", self._name, error)
            except Exception:
                LOG.exception("%s: %d items could not be handled", self._name, len(items))
            with self._changed:
                self._took.append(time.monotonic() - began)
                self._rounds -= 1
                self._changed.notify_all()  # who waits for the next round may begin it now
                if self._ready or not self._waiting:
                    return
                self._ready += 1

    def _next_round(self) -> list[T]:
        """Wait until a round may begin and return its items; an empty list ends the thread."""
        with self._changed:
            while self._waiting:
                now = time.monotonic()
                due = self._began + (self._hold_seconds() if self._rounds else self._pace)
                if due > now:
                    self._changed.wait(due - now)
                    continue
                items = list(self._waiting)[: self._limit]
                for item in items:
                    del self._waiting[item]
                self._began = now
                self._rounds += 1
                self._ready -= 1
                self._start_threads()
                return items
            self._ready -= 1
            return []

    def _hold_seconds(self) -> float:
        """Seconds that the next round waits beside a running one. Uses the shortest recent round, because one slow round says
        little.
        """
        return max(self._patience, min(self._longest, 2 * min(self._took)))
