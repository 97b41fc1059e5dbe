"""How what failed is tried again: after a pause that doubles. What a database's errors mean for it is in ``db/sql/retry.py``."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

import tenacity

T = TypeVar("T")


def pause_after(failures: int, first: float, longest: float, *, spread: float = 0.0) -> float:
    """Seconds until the next try: ``first`` after one failure, twice as many after each further one, ``longest`` at most.

    ``spread``: the share of it that may be taken off at random, so that those who failed together do not come back together.
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
    """Call ``function`` until it raises no ``on``; return its result. The pauses are as in ``pause_after``.

    ``failed`` is told of each error. Raises the last one as soon as ``stopping`` is set.
    """

    def told(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None:
            failed(error)

    policy = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(on),
        wait=lambda state: pause_after(state.attempt_number, first, longest),
        stop=tenacity.stop_when_event_set(stopping),
        sleep=tenacity.sleep_using_event(stopping),
        before_sleep=told,
        reraise=True,
    )
    return policy(function)
