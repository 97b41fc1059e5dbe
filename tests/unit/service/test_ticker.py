"""The thread that calls many functions, each when it is due: woken, failing, removed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from objects import errors
from service.ticker import Ticker

PATIENCE = 90.0
NEVER = 3600.0


@pytest.fixture
def ticker() -> Iterator[Ticker]:
    made = Ticker("test").start()
    yield made
    made.stop()


class Work:
    """Counts its calls; each says that the next is due after the next of ``pauses``."""

    def __init__(self, *pauses: float) -> None:
        self.pauses = list(pauses)
        self.begun = threading.Semaphore(0)

    def __call__(self) -> float:
        self.begun.release()
        return time.monotonic() + (self.pauses.pop(0) if self.pauses else NEVER)

    def called(self, timeout: float = PATIENCE) -> bool:
        return self.begun.acquire(timeout=timeout)


def test_a_function_is_called_immediately_and_when_due(ticker: Ticker) -> None:
    often, once = Work(0.0, 0.0), Work()
    ticker.add_function(once)
    ticker.add_function(often)
    assert all(often.called() for _ in range(3))
    assert once.called()
    assert not once.called(timeout=0.0)
    assert not ticker.find_trouble()


def test_a_woken_function_is_called_early(ticker: Ticker) -> None:
    work = Work()
    call = ticker.add_function(work)
    assert work.called()
    ticker.wake_call(call)
    assert work.called()


def test_a_function_woken_during_its_call_is_repeated(ticker: Ticker) -> None:
    begun, goes_on, calls = threading.Event(), threading.Event(), threading.Semaphore(0)

    def work() -> float:
        begun.set()
        assert goes_on.wait(PATIENCE)
        calls.release()
        return time.monotonic() + NEVER

    call = ticker.add_function(work)
    assert begun.wait(PATIENCE)
    ticker.wake_call(call)
    goes_on.set()
    assert calls.acquire(timeout=PATIENCE)
    assert calls.acquire(timeout=PATIENCE)


@pytest.mark.parametrize("error", [errors.CellUnavailable("away"), ValueError("a bug")])
def test_a_failing_function_is_retried_without_delaying_others(ticker: Ticker, error: Exception) -> None:
    failing, work, calls = [error], Work(0.0), threading.Semaphore(0)

    def fail() -> float:
        calls.release()
        if failing:
            raise failing.pop()
        return time.monotonic() + NEVER

    ticker.add_function(fail)
    ticker.add_function(work)
    assert work.called()
    assert work.called()
    assert calls.acquire(timeout=PATIENCE)
    assert calls.acquire(timeout=PATIENCE)


def test_one_that_is_removed_is_not_called_again(ticker: Ticker) -> None:
    removed, other = Work(), Work()
    call = ticker.add_function(removed)
    assert removed.called()
    ticker.remove_call(call)
    ticker.wake_call(call)
    ticker.add_function(other)
    assert other.called()
    assert not removed.called(timeout=0.0)
