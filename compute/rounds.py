"""Periodic work of an agent: one thread for the heartbeat, and a worker pool for calls that may block."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from objects import errors
from service.periodic import Periodic
from service.retry import keep_trying
from service.worker_pool import WorkerPool

LOG = logging.getLogger(__name__)

FIRST_RETRY_S = 0.2
LONGEST_RETRY_S = 5.0
"""Seconds between two attempts to reach the cell conductor at start, doubled from the first to the longest."""


@dataclass(eq=False, slots=True)
class Round:
    """One piece of periodic work: its function, its interval in seconds, and when it is next due (monotonic seconds)."""

    name: str
    interval: float
    function: Callable[[], None]
    due: float = 0.0
    running: bool = False
    trouble: str = ""


class Rounds:
    """Runs ``beat`` in the ticking thread, and each round in a worker thread, never twice at once.

    The heartbeat must not wait for a hanging call, or a slow conductor would make the whole cell look down. So all work that waits
    for an answer is a round. Rounds begin after ``first`` has succeeded; it is retried until the cell conductor answers.
    """

    def __init__(self, host: str, beat: Callable[[], None], first: Callable[[], None], rounds: Sequence[Round]) -> None:
        self._host = host
        self._first = first
        self._rounds = rounds
        self._workers = WorkerPool(f"rounds-{host}", len(rounds) + 1)
        self._ready = False
        self._stopping = threading.Event()
        self._beat = beat
        interval = min(1.0, *(one.interval for one in rounds))
        self._ticker = Periodic(f"compute-{host}", interval, self._tick)

    def start(self) -> None:
        self._workers.post(self._wait_for_conductor)
        self._ticker.start()

    def stop(self) -> None:
        self._stopping.set()
        self._ticker.stop()
        self._workers.stop()

    def _tick(self) -> None:
        self._beat()
        now = time.monotonic()
        for one in self._rounds:
            if self._ready and not one.running and one.due <= now:
                one.running = True
                one.due = now + one.interval
                self._workers.post(self._run, one)

    def _run(self, one: Round) -> None:
        try:
            one.function()
        except errors.SuperconductorError as error:
            text = f"{type(error).__name__}: {error}"
            LOG.log(logging.DEBUG if text == one.trouble else logging.WARNING, "%s of host %s: %s", one.name, self._host, text)
            one.trouble = text
        else:
            one.trouble = ""
        finally:
            one.running = False

    def _wait_for_conductor(self) -> None:
        failures: list[BaseException] = []

        def failed(error: BaseException) -> None:
            if not failures:
                ours = isinstance(error, errors.SuperconductorError)
                why = "waits for its cell conductor and retries" if ours else "cannot start yet and retries"
                LOG.warning("Host %s %s: %s", self._host, why, error, exc_info=None if ours else error)
            failures.append(error)

        try:
            keep_trying(self._first, first=FIRST_RETRY_S, longest=LONGEST_RETRY_S, stopping=self._stopping, failed=failed)
        except Exception as error:  # noqa: BLE001 - the first failure was logged, and the agent stops
            LOG.debug("Host %s stops before its cell conductor answered: %s", self._host, error)
            return
        LOG.info("The cell conductor of host %s answers", self._host)
        self._ready = True
        self._ticker.wake()
