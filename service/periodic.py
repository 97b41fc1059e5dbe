"""A thread that runs one function periodically: every sweep of the project is one of these."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from objects import errors
from service import health, metrics
from service.pace import Pace
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

WEDGED_AFTER_INTERVALS = 10
"""A round may be late, or last, this many intervals before its thread counts as wedged."""
MIN_WEDGED_AFTER_S = 60.0
"""Minimum, in seconds, of how late a round must be to count as wedged: a busy machine is not wedged."""


class Periodic:
    """Call ``function`` every ``interval`` seconds (jittered by 10 %) until stopped, and at once when woken.

    A ``Pace`` as interval makes it adaptive. A failing function is called at the pace of something that happens.

    The function may return True if there is more to do: it is then called again without a pause. An error ends only that call,
    never the thread. While the function fails, each error is logged once in a while, our own errors in one line. Its recovery is
    logged too. ``at_once`` False: the first call waits for ``interval``, too.
    """

    def __init__(self, name: str, interval: float | Pace, function: Callable[[], bool | None], *, at_once: bool = True) -> None:
        self.name = name
        self.pace = interval if isinstance(interval, Pace) else Pace(interval)
        self._function = function
        self._at_once = at_once
        self._stopping = False
        self._complaints: RateLimitedLog | None = None
        """Created on the first failure after a success."""
        self._turned_at = self._begun_at = time.monotonic()
        self._running = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Periodic:
        self._turned_at = time.monotonic()
        self.pace.begin_round()
        self._thread.start()
        health.BOARD.watch_part(self)
        metrics.SWEEP_AGE.follow_reader(self._age_values)
        return self

    def wake_now(self) -> None:
        """Run now; run again if a run is under way."""
        self.pace.wake_now()

    def pass_over(self) -> None:
        """Count as a round: somebody else has seen that there is nothing to do."""
        if not self._running:
            self._turned_at = time.monotonic()
            self.pace.postpone_round()

    def stop(self, timeout: float | None = 10.0) -> None:
        """Ask the thread to end and wait up to ``timeout`` seconds for the run under way."""
        self._stopping = True
        health.BOARD.forget_part(self)
        self.pace.wake_now()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def find_trouble(self) -> str:
        """Why no more rounds run; empty if they do. A round that fails each time is not wedged: the log and a counter report
        it.
        """
        now = time.monotonic()
        if not self._thread.is_alive() and not self._stopping:
            return "its thread has ended"
        if self._running:
            allowed = max(health.BOARD.stuck, WEDGED_AFTER_INTERVALS * self.pace.busy)
            return f"its round has not ended for {now - self._begun_at:.0f} s" if now - self._begun_at > allowed else ""
        late = now - self.pace.next_due
        return (
            f"its next round is late by {late:.0f} s"
            if late > max(MIN_WEDGED_AFTER_S, WEDGED_AFTER_INTERVALS * self.pace.busy)
            else ""
        )

    def _age_values(self) -> metrics.Values:
        return [] if self._stopping else [((self.name,), time.monotonic() - self._turned_at)]

    def _run(self) -> None:
        if not self._at_once:
            self.pace.wait_round()
        while not self._stopping:
            self.pace.begin_round()
            more = self._run_once()
            if not more and not self._stopping:
                self.pace.wait_round()

    def _run_once(self) -> bool:
        self._begun_at, self._running = time.monotonic(), True
        try:
            more = bool(self._function())
        except Exception as error:  # noqa: BLE001 - a sweep whose thread ended would leave its work undone; the error is logged
            failure = error
            metrics.SWEEP_ERRORS.labels(self.name).inc()
            self.pace.note_failure()
        else:
            if self._complaints is not None:
                LOG.info("%s: works again", self.name)
            self._complaints = None
            return more
        finally:
            self._turned_at = time.monotonic()
            self._running = False
        self._log_failure(failure)  # outside the except block: inside it, the log would repeat the error at the end of the line
        return False

    def _log_failure(self, error: Exception) -> None:
        self._complaints = self._complaints or RateLimitedLog(LOG)
        text = f"{type(error).__name__}: {error}"
        trace = None if isinstance(error, errors.SuperconductorError) else error
        self._complaints(text, logging.WARNING, "%s: %s", self.name, text, exc_info=trace)


class ErrorCollector:
    """Steps of one round; a failed step does not keep the next ones from running: ``with Steps() as steps: steps.run(one)``.

    At the end the first error is raised and the others are logged.
    """

    def __init__(self) -> None:
        self._errors: list[tuple[str, Exception]] = []

    def __enter__(self) -> ErrorCollector:
        return self

    def run(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return ``step(...)``, or None if it fails."""
        try:
            return step(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - raised at the end, or logged there
            self._errors.append((getattr(step, "__qualname__", repr(step)), error))
            return None

    def __exit__(self, *raised: object) -> None:
        for name, error in self._errors[1:]:
            LOG.warning("%s: %s: %s", name, type(error).__name__, error)
        if self._errors and raised[0] is None:
            raise self._errors[0][1]


class Every:
    """True once per ``seconds`` of monotonic time, for a slow job within a fast loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


def wait_until(condition: Callable[[], bool], timeout: float, pause: float = 0.02) -> bool:
    """Poll ``condition`` until it holds or ``timeout`` seconds have passed; return whether it held."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True
