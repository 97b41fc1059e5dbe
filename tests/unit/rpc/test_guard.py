"""A caller of the guard is never held longer than it said, whatever the function does."""

from __future__ import annotations

import threading

import pytest

from rpc.deadline_executor import DeadlineExecutor, Late
from service.periodic import wait_until


def no_check() -> None:
    """The check of a caller that has nothing to check."""


def run(guard: DeadlineExecutor, function: object, timeout: float = 30.0) -> object:
    assert callable(function)
    return guard.run(function, timeout, patience=30.0, check=no_check)


def test_results_and_errors_come_through() -> None:
    guard = DeadlineExecutor("test", 2)

    assert run(guard, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        run(guard, lambda: 1 / 0)


def test_an_error_that_speaks_of_time_is_the_functions_own() -> None:
    def slow_service() -> None:
        raise TimeoutError("the socket's")

    with pytest.raises(TimeoutError, match="the socket's"):
        run(DeadlineExecutor("test", 1), slow_service)


def test_one_thread_is_used_again() -> None:
    guard = DeadlineExecutor("test", 5)

    names = {run(guard, threading.get_ident) for _ in range(20)}

    assert len(names) <= 2  # a second if the first was not yet back when the second job came


def test_a_function_that_does_not_end_is_left_behind_and_its_late_end_harms_nobody() -> None:
    guard, release, ended = DeadlineExecutor("test", 1), threading.Event(), threading.Event()

    def stuck() -> None:
        release.wait(30)
        ended.set()

    with pytest.raises(Late):
        run(guard, stuck, timeout=0.05)
    with pytest.raises(Late):  # the only thread is taken
        run(guard, ended.set, timeout=0.05)
    assert not ended.is_set()

    release.set()
    assert ended.wait(30)
    assert run(guard, lambda: "again") == "again"


def test_a_job_given_up_before_it_began_is_never_begun() -> None:
    guard, release, begun = DeadlineExecutor("test", 1), threading.Event(), threading.Event()
    with pytest.raises(Late):
        run(guard, lambda: release.wait(30), timeout=0.05)
    with pytest.raises(Late):
        run(guard, begun.set, timeout=0.05)

    release.set()
    assert run(guard, lambda: "next") == "next"

    assert not begun.is_set()


def test_a_check_that_fails_while_waiting_ends_the_wait() -> None:
    guard, release = DeadlineExecutor("test", 1), threading.Event()

    def dead() -> None:
        raise ConnectionError("dead")

    with pytest.raises(ConnectionError, match="dead"):
        guard.run(lambda: release.wait(30), 30.0, patience=0.05, check=dead)
    release.set()


def test_idle_threads_end_when_it_is_closed() -> None:
    guard = DeadlineExecutor("guard-closing", 3)
    run(guard, lambda: None)

    guard.close()

    assert wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "guard-closing"], 10)
