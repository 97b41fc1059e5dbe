"""Periodic work of an agent: one thread says when work is due, and a worker pool makes the calls that may block."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from objects import errors
from service import health
from service.periodic import MIN_WEDGED_AFTER_S, WEDGED_AFTER_INTERVALS
from service.retry import keep_trying
from service.ticker import Ticker, TickerCall
from service.worker_pool import WorkerPool

LOG = logging.getLogger(__name__)

FIRST_RETRY_S = 0.2
LONGEST_RETRY_S = 5.0
"""Seconds between two attempts to reach the cell conductor at start, doubled from the first to the longest."""

HURRIED_PAUSE_S = 1.0
"""Least seconds between two runs of a round, however often it is hurried."""

RUNNING_RETRY_S = 1.0
"""Seconds after which a round that is due again, and still runs, is looked at again."""


@dataclass(eq=False, slots=True)
class Round:
    """One piece of periodic work: its function, its interval in seconds, and when it is next due (monotonic seconds).

    ``from_start``: it does not wait until the cell conductor has answered. ``idle_interval``: the interval in seconds while
    the agent is idle; 0: the same as otherwise.
    """

    name: str
    interval: float
    function: Callable[[], None]
    due: float = 0.0
    from_start: bool = False
    idle_interval: float = 0.0
    running: bool = False
    begun: float = 0.0
    trouble: str = ""

    def describe_stuck(self, now: float) -> str:
        """That it does not end; empty if it may still."""
        lasts = now - self.begun
        if not self.running or lasts <= max(health.BOARD.stuck, MIN_WEDGED_AFTER_S, WEDGED_AFTER_INTERVALS * self.interval):
            return ""
        return f"{self.name} has begun {lasts:.0f} s ago and does not end"


class AgentThreads:
    """The threads for the periodic work of an agent, or of several agents in one process: a ticker and a worker pool."""

    def __init__(self, name: str, size: int) -> None:
        """``size``: how many calls that block may be under way."""
        self.ticker = Ticker(f"compute-{name}")
        self.workers = WorkerPool(f"rounds-{name}", size)

    def start(self) -> AgentThreads:
        self.ticker.start()
        return self

    def stop(self) -> None:
        self.ticker.stop()
        self.workers.stop()


class RoundsOwner(Protocol):
    """Whose rounds they are: the service of an agent."""

    def take_first_steps(self) -> None:
        """What must succeed before most rounds begin. It is retried until the cell conductor answers."""

    def beat_once(self) -> float:
        """Do what must not wait. Returns when it is next due (monotonic seconds)."""
        ...

    def is_idle(self) -> bool:
        """Whether nothing changes here before ``wake_rounds`` is called."""
        ...


class Rounds:
    """Calls ``beat_once`` in the ticking thread, and each round in a worker thread, never twice at once.

    The heartbeat must not wait for a hanging call, or a slow conductor would make the whole cell look down. So all work that waits
    for an answer, and each call of the hypervisor, is a round. ``find_trouble`` names the rounds that hang. Nothing is called
    before something is due.
    """

    def __init__(self, host: str, owner: RoundsOwner, rounds: Sequence[Round], threads: AgentThreads) -> None:
        self.name = f"rounds of host {host}"
        self._host = host
        self._owner = owner
        self._rounds = rounds
        self._threads = threads
        self._ready = False
        self._stopping = threading.Event()
        self._tick_call: TickerCall | None = None

    def start(self) -> None:
        self._threads.workers.post_call(self._wait_for_conductor)
        self._tick_call = self._threads.ticker.add_function(self._tick_rounds)
        health.BOARD.watch_part(self)

    def begin_again(self) -> None:
        """Run only the rounds from the start until ``take_first_steps`` has succeeded once more."""
        if self._ready:
            self._ready = False
            self._threads.workers.post_call(self._wait_for_conductor)

    def hurry_round(self, name: str) -> None:
        """Run this round soon; again if it is running. So many calls cost one run in ``HURRIED_PAUSE_S`` at most."""
        for one in self._rounds:
            if one.name == name:
                one.due = min(one.due, max(time.monotonic(), one.begun + HURRIED_PAUSE_S))
        self.wake_rounds()

    def wake_rounds(self) -> None:
        """Call ``beat_once`` now and what is due. Something has begun: the intervals are no longer those of an idle agent."""
        now = time.monotonic()
        for one in self._rounds:
            if one.idle_interval:
                one.due = min(one.due, now + one.interval)
        if self._tick_call is not None:
            self._threads.ticker.wake_call(self._tick_call)

    def find_trouble(self) -> str:
        """The rounds that hang; empty if none does."""
        now = time.monotonic()
        return "; ".join(text for one in self._rounds if (text := one.describe_stuck(now)))

    def stop(self) -> None:
        health.BOARD.forget_part(self)
        self._stopping.set()
        if self._tick_call is not None:
            self._threads.ticker.remove_call(self._tick_call)

    def _tick_rounds(self) -> float:
        """Begin what is due. Returns when something is due again."""
        try:
            following = self._owner.beat_once()
        finally:
            now = time.monotonic()
            for one in self._rounds:
                if (self._ready or one.from_start) and one.due <= now:
                    self._begin_round(one, now)
        return min([following, *(one.due for one in self._rounds if self._ready or one.from_start)])

    def _begin_round(self, one: Round, now: float) -> None:
        if one.running:
            one.due = now + RUNNING_RETRY_S
            return
        one.running = True
        interval = one.idle_interval if one.idle_interval and self._owner.is_idle() else one.interval
        one.due, one.begun = now + interval * random.uniform(0.9, 1.1), now
        self._threads.workers.post_call(self._run, one)

    def _run(self, one: Round) -> None:
        try:
            one.function()
        except errors.HypervisorDown as error:
            LOG.debug("%s of host %s: %s", one.name, self._host, error)  # the agent's ``look`` says so
        except errors.SuperconductorError as error:
            text = f"{type(error).__name__}: {error}"
            expected = text == one.trouble or self._stopping.is_set()  # a bus that is closed beside the agent is no trouble
            LOG.log(logging.DEBUG if expected else logging.WARNING, "%s of host %s: %s", one.name, self._host, text)
            one.trouble = text
            self._retry_round(one)
        else:
            one.trouble = ""
        finally:
            one.running = False

    def _retry_round(self, one: Round) -> None:
        """It failed: do not wait for the interval of an idle agent."""
        if one.idle_interval and self._tick_call is not None:
            one.due = min(one.due, time.monotonic() + one.interval)
            self._threads.ticker.wake_call(self._tick_call)

    def _wait_for_conductor(self) -> None:
        failures: list[BaseException] = []

        def log_wait(error: BaseException) -> None:
            if not failures:
                ours = isinstance(error, errors.SuperconductorError)
                why = "waits for its cell conductor and retries" if ours else "cannot start yet and retries"
                LOG.warning("Host %s %s: %s", self._host, why, error, exc_info=None if ours else error)
            failures.append(error)

        try:
            first_steps = self._owner.take_first_steps
            keep_trying(first_steps, first=FIRST_RETRY_S, longest=LONGEST_RETRY_S, stopping=self._stopping, failed=log_wait)
        except Exception as error:  # noqa: BLE001 - the first failure was logged, and the agent stops
            LOG.debug("Host %s stops before its cell conductor answered: %s", self._host, error)
            return
        LOG.info("The cell conductor of host %s answers", self._host)
        self._ready = True
        if self._tick_call is not None:
            self._threads.ticker.wake_call(self._tick_call)
