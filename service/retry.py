"""Retry failed calls with exponential backoff. The only user of tenacity; ``db/sql/retry.py`` classifies a database's errors."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

import tenacity

T = TypeVar("T")


def pause_after(failures: int, first: float, longest: float, *, spread: float = 0.0) -> float:
    """Seconds until the next try: ``first`` after one failure, doubled after each further one, at most ``longest``.

    ``spread``: the share of the pause that jitter may subtract, so that callers that failed together do not retry together.
    """
    pause = min(longest, first * 2.0 ** min(failures - 1, 30))
    return pause * random.uniform(1.0 - spread, 1.0)


def keep_trying(
    function: Callable[[], T],
    *,
    first: float,
    longest: float,
    stopping: threading.Event,
    failed: Callable[[BaseException], object],
    on: type[Exception] = Exception,
) -> T:
    """Call ``function`` until it raises no ``on`` error; return its result. Pauses are as in ``pause_after``.

    ``failed`` is called with each error. Raises the last error as soon as ``stopping`` is set.
    """

    def report_failure(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None:
            failed(error)

    policy = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(on),
        wait=lambda state: pause_after(state.attempt_number, first, longest),
        stop=tenacity.stop_when_event_set(stopping),
        sleep=tenacity.sleep_using_event(stopping),
        before_sleep=report_failure,
        reraise=True,
    )
    return policy(function)


def retry_failed(
    function: Callable[[], T],
    first: Exception,
    *,
    first_pause: float,
    longest: float,
    retried: Callable[[BaseException], bool],
    is_last: Callable[[BaseException, int, float], bool],
    failed: Callable[[BaseException, int], None],
) -> T:
    """Call ``function`` again after it raised ``first``; return its result.

    Pauses have full jitter: between nothing and the pause of ``pause_after``.

    ``retried``: whether a call that raised this error is repeated. ``is_last``: whether to stop, given the error, the number of
    calls so far and the seconds since the call of this function. ``failed`` is called with each error that is retried and the
    number of calls so far. Raises the last error.
    """
    raised: list[Exception] = [first]

    def call() -> T:
        if raised:
            raise raised.pop()
        return function()

    def error_of(state: tenacity.RetryCallState) -> BaseException:
        error = state.outcome.exception() if state.outcome else None
        return error or first

    policy = tenacity.Retrying(
        retry=tenacity.retry_if_exception(retried),
        wait=lambda state: pause_after(state.attempt_number, first_pause, longest, spread=1.0),
        stop=lambda state: is_last(error_of(state), state.attempt_number, state.seconds_since_start or 0.0),
        before_sleep=lambda state: failed(error_of(state), state.attempt_number),
        reraise=True,
    )
    return policy(call)
