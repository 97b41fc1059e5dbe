"""Take what is announced one by one, and handle what has come in one moment together."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from objects import errors

LOG = logging.getLogger(__name__)

T = TypeVar("T")

USUAL = 4
"""The last rounds, by which is told how long one takes."""


class RoundBatcher(Generic[T]):
    """Whoever adds does not wait. Items are handled in rounds, each with all that has come since the one before.

    A round begins at once where none is under way, and ``pace`` seconds after the one before at the earliest. While a round is
    under way the next one fills up, for ``patience`` seconds, or twice what rounds take these days, but ``longest`` at most: then
    it begins beside it, so that what is slow, or waits for somebody who does not answer, holds up nothing for longer. (Rounds that
    take long because the machine is busy are not to run beside each other: smaller ones cost more, and all of them would take
    longer still.) There are ``workers`` rounds at most at a time, of ``limit`` items. What ``handle`` raises is logged: what was
    announced is in rows, and sweeps find it.
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
    ) -> None:
        self._name = name
        self._handle = handle
        self._pace = pace
        self._patience = patience
        self._longest = longest
        self._took: deque[float] = deque([0.0], maxlen=USUAL)
        self._workers = workers
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: dict[T, None] = {}
        self._rounds = 0
        self._stopping = False
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
        self._thread: threading.Thread | None = None

    def add(self, items: Sequence[T]) -> None:
        """Handle these soon. One that waits already is handled once. After ``stop`` nothing is."""
        with self._changed:
            if self._stopping:
                return
            self._waiting |= dict.fromkeys(items)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"{self._name}-rounds", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def stop(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify_all()
            thread = self._thread
        self._pool.shutdown(wait=True)
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        began = -self._patience
        while (items := self._next(began)) is not None:
            began = time.monotonic()
            try:
                self._pool.submit(self._round, items).add_done_callback(self._ended)
            except RuntimeError:  # stopped in this moment
                return

    def _next(self, began: float) -> list[T] | None:
        """Wait until a round may begin, the one before having begun at ``began``; None: stop."""
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                due = began + (self._pace if not self._rounds else self._hold())
                if self._waiting and due <= now and self._rounds < self._workers:
                    items = list(self._waiting)[: self._limit]
                    for item in items:
                        del self._waiting[item]
                    self._rounds += 1
                    return items
                self._changed.wait(due - now if self._waiting and due > now else None)
            return None

    def _hold(self) -> float:
        """Seconds for which a round keeps the next one waiting. One that took long says little: the quickest of the last counts."""
        return max(self._patience, min(self._longest, 2 * min(self._took)))

    def _round(self, items: Sequence[T]) -> None:
        began = time.monotonic()
        try:
            self._handle(items)
        except errors.SuperconductorError as error:
            LOG.warning("%s: %s", self._name, error)
        except Exception:
            LOG.exception("%s: %d could not be handled", self._name, len(items))
        self._took.append(time.monotonic() - began)

    def _ended(self, _: Future[None]) -> None:
        with self._changed:
            self._rounds -= 1
            self._changed.notify_all()
