"""Group what several threads ask in one moment into one piece of work (a transaction, a message)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from objects import errors
from service.isolate import Transient, isolate

T = TypeVar("T")
R = TypeVar("R")

LATELY = 3
"""Groups that tell how many the next one may have."""


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
