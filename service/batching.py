"""Handle together what comes in one moment: asked by threads that wait for their answers, or only announced."""

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
from service.isolate import Transient, isolate
from service.worker_pool import WorkerPool

LOG = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

LATELY = 3
"""Groups that tell how many the next one may have."""
USUAL = 4
"""The last rounds, by which is told how long one takes."""


class GroupCommit(Generic[T, R]):
    """Callable that hands single items to ``handle`` in groups and returns each caller its own result.

    The first caller of a group leads: it waits until the group before has ended, then ``window`` seconds more, or until as many
    have come as came together lately, and runs ``handle`` with all that has come meanwhile, in its own thread. Where each has come
    alone lately, ``patient`` says whether it waits all the same. ``handle`` gets a list and returns as many results in the same
    order; a result that is an exception is raised in its caller.

    Where ``handle`` raises, it must have done nothing: it is called with each half of the group, and so on, until only the callers
    at fault get the exception (``service/isolate.py``). An error in ``transient`` goes to all of them.

    Used for group commit: under load the group before is what one waits for, so the groups grow by themselves.
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
        self._sizes: deque[int] = deque([1], maxlen=LATELY)
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
            done = isolate(self._answer, group, transient=self._transient)
            for (_, future), error in done.failed:
                future.set_exception(error)
        except Exception as error:  # noqa: BLE001 - handed to every caller that waits, who raises it
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
        if followers:
            self._run()

    def _answer(self, group: Sequence[tuple[T, Future[R]]]) -> None:
        for (_, future), result in list(zip(group, self._handle([item for item, _ in group]), strict=True)):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


class RoundBatcher(Generic[T]):
    """Whoever adds does not wait. Items are handled in rounds, each with all that has come since the one before.

    A round begins at once where none is under way, and ``pace`` seconds after the one before at the earliest. While a round is
    under way the next one fills up, for ``patience`` seconds, or twice what rounds take these days, but ``longest`` at most: then
    it begins beside it, so that what is slow, or waits for somebody who does not answer, holds up nothing for longer. (Rounds that
    take long because the machine is busy are not to run beside each other: smaller ones cost more, and all of them would take
    longer still.) There are ``workers`` rounds at most at a time, of ``limit`` items; ``most`` may wait, and beyond that new ones
    are dropped. What ``handle`` raises is logged: what was announced is in rows, and sweeps find it.
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
        self._took: deque[float] = deque([0.0], maxlen=USUAL)
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

    def add(self, items: Sequence[T]) -> None:
        """Handle these soon. One that waits already is handled once. After ``stop`` nothing is."""
        with self._changed:
            if self._stopping:
                return
            if len(self._waiting) + len(items) > self._most:
                LOG.debug("%s: %d are left to the sweeps, as many wait", self._name, len(items))
                return
            self._waiting |= dict.fromkeys(items)
            self._staff()
            self._changed.notify_all()

    def stop(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify_all()
        self._pool.close()
        self._pool.drain(None)

    def _staff(self) -> None:
        """See that a thread waits for the next round, if there may be one. With the lock held."""
        if self._waiting and not self._ready and self._rounds < self._workers:
            self._ready += 1
            self._pool.post(self._run)

    def _run(self) -> None:
        """Rounds, one after the other, as long as something waits."""
        while items := self._next():
            began = time.monotonic()
            try:
                self._handle(items)
            except errors.SuperconductorError as error:
                LOG.warning("%s: %s", self._name, error)
            except Exception:
                LOG.exception("%s: %d could not be handled", self._name, len(items))
            with self._changed:
                self._took.append(time.monotonic() - began)
                self._rounds -= 1
                self._changed.notify_all()  # who waits for the next round may begin it now
                if self._ready or not self._waiting:
                    return
                self._ready += 1

    def _next(self) -> list[T]:
        """Wait until a round may begin; its items. Empty: stop."""
        with self._changed:
            while self._waiting:
                now = time.monotonic()
                due = self._began + (self._hold() if self._rounds else self._pace)
                if due > now:
                    self._changed.wait(due - now)
                    continue
                items = list(self._waiting)[: self._limit]
                for item in items:
                    del self._waiting[item]
                self._began = now
                self._rounds += 1
                self._ready -= 1
                self._staff()
                return items
            self._ready -= 1
            return []

    def _hold(self) -> float:
        """Seconds for which a round keeps the next one waiting. One that took long says little: the quickest of the last counts."""
        return max(self._patience, min(self._longest, 2 * min(self._took)))
