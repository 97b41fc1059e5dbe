"""The pool of threads for calls that may hang."""

from __future__ import annotations

import threading

import pytest

from cells.workers import BulkheadWorkers
from service.periodic import wait_until


def test_runs_at_most_size_calls_at_once_and_all_of_them() -> None:
    workers = BulkheadWorkers("test", 2)
    lock = threading.Lock()
    running = most = 0
    go = threading.Event()

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(10)
        with lock:
            running -= 1

    jobs = [workers.submit(call) for _ in range(7)]
    assert wait_until(lambda: running == 2, 10)
    go.set()
    assert all(job.wait(10) for job in jobs)
    assert most == 2
    assert workers.threads == 2


def test_results_and_errors_come_back() -> None:
    workers = BulkheadWorkers("test", 1)
    good, bad = workers.submit(lambda: 42), workers.submit(lambda: "abc"[3])
    assert good.wait(10)
    assert good.result() == 42
    assert bad.wait(10)
    with pytest.raises(IndexError):
        bad.result()


def test_a_queued_call_that_is_given_up_is_never_run() -> None:
    workers = BulkheadWorkers("test", 1)
    frozen = threading.Event()
    ran = []
    first = workers.submit(lambda: frozen.wait(30))
    second = workers.submit(lambda: ran.append("second"))
    assert workers.give_up(second) is False
    frozen.set()
    assert first.wait(10)
    third = workers.submit(lambda: ran.append("third"))
    assert third.wait(10)
    assert ran == ["third"]


def test_a_worker_that_hangs_is_replaced_once_given_up_and_leaves_when_it_comes_back() -> None:
    workers = BulkheadWorkers("test", 1)
    started, frozen = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        frozen.wait(30)

    stuck = workers.submit(hang)
    assert started.wait(10)
    assert workers.give_up(stuck) is True
    assert workers.submit(lambda: 1).wait(10), "another thread took it"
    assert workers.threads == 2
    frozen.set()
    assert wait_until(lambda: workers.threads == 1, 10)
    assert workers.submit(lambda: 1).wait(10)


def test_threads_are_bounded_even_where_every_call_hangs_for_ever() -> None:
    workers = BulkheadWorkers("test", 2)
    frozen = threading.Event()

    def give_up_one() -> int:
        job = workers.submit(lambda: frozen.wait(30))
        job.wait(0.02)
        workers.give_up(job)
        return workers.threads

    assert wait_until(lambda: give_up_one() == 4, 20), "each of the two is replaced once"
    assert [give_up_one() for _ in range(10)] == [4] * 10, "and no more"
    frozen.set()
    assert wait_until(lambda: workers.threads <= 2, 10)
    assert workers.submit(lambda: 1).wait(10)


def test_idle_threads_end_and_new_ones_come_when_needed() -> None:
    workers = BulkheadWorkers("test", 3, idle=0.05)
    assert workers.submit(lambda: 1).wait(10)
    assert wait_until(lambda: workers.threads == 0, 10)
    assert workers.submit(lambda: 1).wait(10)


def test_close_ends_idle_threads() -> None:
    workers = BulkheadWorkers("test", 3, idle=60)
    jobs = [workers.submit(lambda: 1) for _ in range(3)]
    assert all(job.wait(10) for job in jobs)
    workers.close()
    assert wait_until(lambda: workers.threads == 0, 10)
