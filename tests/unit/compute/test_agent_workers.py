"""Threads that are made when needed."""

from __future__ import annotations

import threading

import pytest

from compute import workers as workers_module
from compute.workers import OrderedWorkers
from service.periodic import wait_until


def test_no_more_than_the_limit_run_at_once_and_the_rest_wait() -> None:
    workers, gate, running, done = OrderedWorkers("w", 3), threading.Event(), [], []

    def work() -> None:
        running.append(1)
        gate.wait(10)
        done.append(1)

    for _ in range(8):
        workers.submit(work)
    assert wait_until(lambda: len(running) == 3, 10)
    assert workers.waiting == 5
    assert not workers.drain(0.05)
    gate.set()
    assert workers.drain(10)
    assert len(done) == 8


def test_threads_are_made_for_work_that_comes_at_once_though_one_is_idle() -> None:
    """An idle thread can take one of two functions: the other must not wait behind it."""
    workers, meet = OrderedWorkers("w", 2), threading.Barrier(2, timeout=10)
    workers.submit(lambda: None)
    assert workers.drain(10)
    met: list[int] = []
    for _ in range(2):
        workers.submit(lambda: met.append(meet.wait()))
    assert workers.drain(10)
    assert sorted(met) == [0, 1]


def test_idle_threads_end_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "IDLE_SECONDS", 0.01)
    workers = OrderedWorkers("short-lived", 2)
    workers.submit(lambda: None)
    assert wait_until(lambda: not any(t.name.startswith("short-lived") for t in threading.enumerate()), 10)
    done = threading.Event()
    workers.submit(done.set)
    assert done.wait(10)


def test_an_error_does_not_end_the_work(caplog: pytest.LogCaptureFixture) -> None:
    workers, done = OrderedWorkers("w", 1), threading.Event()

    def broken() -> None:
        raise RuntimeError("driver bug")

    workers.submit(broken)
    workers.submit(done.set)
    assert done.wait(10)
    assert "driver bug" in caplog.text


def test_stop_drops_what_waits_and_takes_nothing_more() -> None:
    workers, gate, ran = OrderedWorkers("w", 1), threading.Event(), list[str]()

    def wait() -> None:
        gate.wait(10)

    workers.submit(wait)
    workers.submit(lambda: ran.append("queued"))
    workers.stop()
    workers.submit(lambda: ran.append("late"))
    gate.set()
    assert workers.drain(10)
    assert ran == []
