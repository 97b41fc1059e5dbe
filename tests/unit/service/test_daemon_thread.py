"""A thread that cannot be started costs itself only."""

from __future__ import annotations

import threading

import pytest

from service.daemon_thread import start_daemon
from service.health import Board, HealthCheck
from service.sample import Sample
from service.worker_pool import WorkerPool

WAIT_S = 20.0


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The system starts no thread until this is undone."""

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    return monkeypatch


def test_failed_start_is_told(no_threads: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert not start_daemon("feeds", lambda: None)
    assert "Thread feeds cannot be started: can't start new thread" in caplog.text


def test_health_recovers_from_a_failed_start(no_threads: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.health.CACHE_LIFETIME_S", 0.0)
    board, part = Board(), HealthCheck("bus", lambda: None)
    board.watch(part)
    assert "cannot start a thread" in board.look(WAIT_S).findings[0].trouble
    no_threads.undo()
    assert board.look(WAIT_S).well


def test_sample_recovers_from_a_failed_start(no_threads: pytest.MonkeyPatch) -> None:
    sample = Sample("size", lambda: 7)
    assert sample.get() is None
    no_threads.undo()
    assert sample.get() == 7


def test_queued_call_runs_after_a_failed_start(no_threads: pytest.MonkeyPatch) -> None:
    pool = WorkerPool("cell", 2)
    first = pool.submit(lambda: 1)
    no_threads.undo()
    second = pool.submit(lambda: 2)
    assert first.wait(WAIT_S)
    assert second.wait(WAIT_S)
    assert (first.result(), second.result()) == (1, 2)
    pool.close()
