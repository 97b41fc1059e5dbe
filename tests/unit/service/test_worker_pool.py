"""The pool of threads, also where what they run never ends."""

from __future__ import annotations

import threading

import pytest

from service.periodic import wait_until
from service.worker_pool import PoolTimeout, WorkerPool

PATIENCE = 90.0


def run(pool: WorkerPool, function: object, timeout: float = PATIENCE) -> object:
    assert callable(function)
    return pool.run(function, timeout, patience=PATIENCE, check=lambda: None)


class TestOrder:
    def test_no_more_than_the_size_run_at_once(self) -> None:
        pool, gate, running, done = WorkerPool("w", 3), threading.Event(), [], []

        def work() -> None:
            running.append(1)
            gate.wait(PATIENCE)
            done.append(1)

        for _ in range(8):
            pool.post_call(work)
        assert wait_until(lambda: len(running) == 3, PATIENCE)
        assert (pool.waiting_count, pool.busy_count, pool.has_free_thread) == (5, 3, False)
        assert not pool.drain_calls(0.05)
        gate.set()
        assert pool.drain_calls(PATIENCE)
        assert len(done) == 8
        assert (pool.waiting_count, pool.busy_count, pool.has_free_thread) == (0, 0, True)

    def test_simultaneous_work_gets_threads_despite_an_idle_one(self) -> None:
        """An idle thread can take one of two functions: the other must not wait behind it."""
        pool, meet = WorkerPool("w", 2), threading.Barrier(2, timeout=PATIENCE)
        pool.post_call(lambda: None)
        assert pool.drain_calls(PATIENCE)
        met: list[int] = []
        for _ in range(2):
            pool.post_call(lambda: met.append(meet.wait()))
        assert pool.drain_calls(PATIENCE)
        assert sorted(met) == [0, 1]

    def test_one_thread_is_used_again(self) -> None:
        pool = WorkerPool("w", 5)
        assert len({run(pool, threading.get_ident) for _ in range(20)}) == 1

    def test_what_is_queued_and_runs_has_its_weight(self) -> None:
        pool, gate = WorkerPool("w", 1), threading.Event()
        pool.submit_call(gate.wait, PATIENCE, weight=5)
        queued = pool.submit_call(gate.wait, PATIENCE, weight=3)
        assert pool.total_weight == 8
        pool.give_up(queued)
        assert pool.total_weight == 5
        gate.set()
        assert pool.wait_for(lambda: pool.total_weight == 0, PATIENCE)


class TestOutcomes:
    def test_results_and_errors_come_back(self) -> None:
        pool = WorkerPool("w", 1)
        good, bad = pool.submit_call(lambda number: 6 * number, 7), pool.submit_call(lambda: "abc"[3])
        assert good.wait_end(PATIENCE)
        assert good.get_result() == 42
        assert bad.wait_end(PATIENCE)
        with pytest.raises(IndexError):
            bad.get_result()

    def test_an_unread_error_is_logged_and_work_continues(self, caplog: pytest.LogCaptureFixture) -> None:
        pool, done = WorkerPool("w", 1), threading.Event()

        def broken() -> None:
            raise RuntimeError("driver bug")

        pool.post_call(broken)
        pool.post_call(done.set)
        assert done.wait(PATIENCE)
        assert "driver bug" in caplog.text

    def test_a_timeout_error_belongs_to_the_function(self) -> None:
        def slow_service() -> None:
            raise TimeoutError("the socket's")

        with pytest.raises(TimeoutError, match="the socket's"):
            run(WorkerPool("w", 1), slow_service)

    def test_a_failing_check_ends_the_wait(self) -> None:
        pool, release = WorkerPool("w", 1), threading.Event()

        def dead() -> None:
            raise ConnectionError("dead")

        with pytest.raises(ConnectionError, match="dead"):
            pool.run(lambda: release.wait(PATIENCE), PATIENCE, patience=0.05, check=dead)
        release.set()


class TestGivingUp:
    def test_what_never_began_never_begins(self) -> None:
        pool, frozen, ran = WorkerPool("w", 1), threading.Event(), list[str]()
        first = pool.submit_call(frozen.wait, PATIENCE)
        second = pool.submit_call(ran.append, "second")
        assert pool.give_up(second) is False
        assert pool.give_up(second) is False, "and again"
        frozen.set()
        assert first.wait_end(PATIENCE)
        assert pool.submit_call(ran.append, "third").wait_end(PATIENCE)
        assert ran == ["third"]
        assert pool.waiting_count == 0

    def test_an_unending_function_holds_only_its_thread(self) -> None:
        pool, release, ended = WorkerPool("w", 1), threading.Event(), threading.Event()

        def stuck() -> None:
            release.wait(PATIENCE)
            ended.set()

        for function in (stuck, ended.set):  # the second finds the thread taken
            with pytest.raises(PoolTimeout):
                run(pool, function, timeout=0.05)
        assert not ended.is_set()
        release.set()
        assert ended.wait(PATIENCE)
        assert run(pool, lambda: "again") == "again"

    def test_a_hanging_thread_is_replaced_and_leaves_later(self) -> None:
        pool, started, frozen = WorkerPool("w", 1, spare=1), threading.Event(), threading.Event()

        def hang() -> None:
            started.set()
            frozen.wait(PATIENCE)

        stuck = pool.submit_call(hang)
        assert started.wait(PATIENCE)
        assert pool.give_up(stuck) is True
        assert pool.submit_call(lambda: 1).wait_end(PATIENCE), "another thread took it"
        assert pool.thread_count == 2
        frozen.set()
        assert wait_until(lambda: pool.thread_count == 1, PATIENCE)
        assert pool.submit_call(lambda: 1).wait_end(PATIENCE)

    def test_threads_are_bounded_even_where_every_call_hangs(self) -> None:
        pool, frozen = WorkerPool("w", 2, spare=2), threading.Event()

        def give_up_one() -> int:
            job = pool.submit_call(frozen.wait, PATIENCE)
            job.wait_end(0.02)
            pool.give_up(job)
            return pool.thread_count

        assert wait_until(lambda: give_up_one() == 4, PATIENCE), "each of the two is replaced once"
        assert [give_up_one() for _ in range(10)] == [4] * 10, "and no more"
        frozen.set()
        assert wait_until(lambda: pool.thread_count <= 2, PATIENCE)
        assert pool.submit_call(lambda: 1).wait_end(PATIENCE)


class TestEnding:
    def test_idle_threads_end_and_come_back(self) -> None:
        pool = WorkerPool("w", 2, idle=0.01)
        assert pool.submit_call(lambda: None).wait_end(PATIENCE)
        assert wait_until(lambda: pool.thread_count == 0, PATIENCE)
        assert pool.submit_call(lambda: None).wait_end(PATIENCE)

    def test_idle_threads_end_after_the_pool_closes(self) -> None:
        pool, gate, ran = WorkerPool("closing", 2, idle=3600), threading.Event(), list[int]()
        pool.post_call(gate.wait, PATIENCE)
        pool.post_call(gate.wait, PATIENCE)
        pool.post_call(ran.append, 1)
        pool.close()
        assert ran == []
        gate.set()
        assert pool.wait_for(lambda: pool.thread_count == 0, PATIENCE)
        assert ran == [1]
        assert wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("closing")], PATIENCE)

    def test_stop_drops_what_waits_and_takes_nothing_more(self) -> None:
        pool, gate, ran = WorkerPool("w", 1), threading.Event(), list[str]()
        pool.post_call(gate.wait, PATIENCE)
        pool.post_call(ran.append, "queued")
        assert wait_until(lambda: pool.busy_count == 1, PATIENCE)
        pool.stop()
        pool.post_call(ran.append, "late")
        gate.set()
        assert pool.drain_calls(PATIENCE)
        assert ran == []
