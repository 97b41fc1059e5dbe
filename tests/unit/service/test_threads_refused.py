"""A thread that cannot be started costs itself only: what it would have done is done by the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from service.batching import RoundBatcher
from service.cached_probe import Sample
from service.health import Board, HealthCheck
from service.periodic import wait_until
from service.threads import start_daemon
from service.worker_pool import WorkerPool

PATIENCE = 90.0


@contextmanager
def no_room() -> Iterator[None]:
    """As at the limit of processes, or without memory for a stack."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def test_a_thread_that_cannot_be_started_is_none() -> None:
    with no_room():
        assert start_daemon("one", print) is None


def test_a_part_without_thread_is_queried_next_time() -> None:
    board = Board(late=0.0)
    part = HealthCheck("a", lambda: None)
    board.watch_part(part)
    with no_room():
        assert board.look_at_parts(PATIENCE).is_well
    found = board.look_at_parts(PATIENCE)
    assert found.is_well
    assert [finding.note for finding in found.findings] == [""]


def test_a_sample_is_asked_again() -> None:
    sample = Sample("a", lambda: 7, patience=PATIENCE)
    with no_room():
        assert sample.get() is None
    assert sample.get() == 7


def test_a_pool_without_threads_refuses_and_forgets_calls() -> None:
    pool, called = WorkerPool("pool", 2), threading.Event()
    with no_room(), pytest.raises(RuntimeError, match="no thread"):
        pool.submit_call(called.set)
    assert pool.waiting_count == 0
    assert pool.submit_call(lambda: 3).wait_end(PATIENCE)
    assert not called.is_set()
    pool.close()


def test_a_pool_with_a_thread_queues_the_call() -> None:
    pool, going_on = WorkerPool("pool", 2), threading.Event()
    busy = pool.submit_call(going_on.wait)
    with no_room():
        queued = pool.submit_call(lambda: 5)
    going_on.set()
    assert busy.wait_end(PATIENCE)
    assert queued.wait_end(PATIENCE)
    assert queued.get_result() == 5
    pool.close()


def test_rounds_begin_again_after_one_that_could_not() -> None:
    handled: list[int] = []

    def handle(items: Sequence[int]) -> None:
        handled.extend(items)

    batcher: RoundBatcher[int] = RoundBatcher("rounds", handle, pace=0.0)
    with no_room():
        batcher.add_items([1])
    batcher.add_items([2])
    assert wait_until(lambda: handled == [1, 2], PATIENCE)
    batcher.stop()
