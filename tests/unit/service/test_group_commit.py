"""Calls of one moment share one piece of work, and each caller gets its own result."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from objects import errors
from service.batching import RECENT_GROUPS, GroupCommit
from service.periodic import wait_until

PATIENCE = 90.0


class Gate:
    """A handler that keeps its groups, and waits in the first of them until it is opened."""

    def __init__(self, limit: int = 500, window: float = 0.0, patient: bool = True) -> None:
        self.groups: list[list[int]] = []
        self.running = 0
        self.most = 0
        self.open = threading.Event()
        self.call: GroupCommit[int, int] = GroupCommit(self._handle, window=window, limit=limit, patient=patient)

    def _handle(self, items: Sequence[int]) -> list[int | Exception]:
        self.running += 1
        self.most = max(self.most, self.running)
        self.groups.append(list(items))
        if len(self.groups) == 1:
            assert self.open.wait(PATIENCE)
        self.running -= 1
        return [item * 10 for item in items]

    def fill(self, pool: ThreadPoolExecutor, count: int) -> list[Future[int]]:
        """One call in the handler, then ``count`` calls that have arrived behind it."""
        futures = [pool.submit(self.call, 0)]
        assert wait_until(lambda: len(self.groups) == 1, PATIENCE)
        for number in range(1, count + 1):
            futures.append(pool.submit(self.call, number))
            assert wait_until(lambda waiting=number: len(self.call._waiting) >= waiting, PATIENCE)  # type: ignore[misc]  # bound now
        return futures


def test_a_lone_call_is_its_group() -> None:
    groups: list[list[str]] = []

    def handle(items: Sequence[str]) -> list[str | Exception]:
        groups.append(list(items))
        return [item.upper() for item in items]

    call: GroupCommit[str, str] = GroupCommit(handle)
    assert [call("a"), call("b")] == ["A", "B"]
    assert groups == [["a"], ["b"]]


def test_calls_during_work_form_the_next_group() -> None:
    gate = Gate()
    with ThreadPoolExecutor(8) as pool:
        futures = gate.fill(pool, 6)
        gate.open.set()
        assert [future.result(PATIENCE) for future in futures] == [0, 10, 20, 30, 40, 50, 60]
    assert gate.groups == [[0], [1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_group_exceeds_the_limit_or_omits_callers(limit: int) -> None:
    gate = Gate(limit=limit)
    with ThreadPoolExecutor(12) as pool:
        futures = gate.fill(pool, 10)
        gate.open.set()
        assert [future.result(PATIENCE) for future in futures] == [number * 10 for number in range(11)]
    assert max(len(group) for group in gate.groups) == limit
    assert [item for group in gate.groups for item in group] == list(range(11))
    assert gate.most == 1


def test_a_window_lets_others_join() -> None:
    """Two threads that start together share one group, as the first waits for the second."""
    gate = Gate(window=1.0)
    gate.open.set()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(gate.call, 1)
        assert wait_until(lambda: len(gate.call._waiting) == 1, PATIENCE)
        second = pool.submit(gate.call, 2)
        assert (first.result(PATIENCE), second.result(PATIENCE)) == (10, 20)
    assert gate.groups == [[1, 2]]


def test_an_impatient_caller_waits_only_after_recent_crowds() -> None:
    gate = Gate(window=PATIENCE, patient=False)
    with ThreadPoolExecutor(4) as pool:
        futures = gate.fill(pool, 2)
        gate.open.set()
        assert [future.result(PATIENCE) for future in futures] == [0, 10, 20]
        third = pool.submit(gate.call, 3)
        assert wait_until(lambda: len(gate.call._waiting) == 1, PATIENCE)
        fourth = pool.submit(gate.call, 4)
        assert (third.result(PATIENCE), fourth.result(PATIENCE)) == (30, 40)
    assert gate.groups == [[0], [1, 2], [3, 4]]


def test_an_impatient_caller_stops_waiting_for_absent_ones() -> None:
    gate = Gate(window=0.01, patient=False)
    with ThreadPoolExecutor(4) as pool:
        futures = gate.fill(pool, 2)
        gate.open.set()
        assert [future.result(PATIENCE) for future in futures] == [0, 10, 20]
    for number in range(RECENT_GROUPS):  # a window each
        assert gate.call(number) == number * 10
    gate.call._window = 3600.0
    assert gate.call(1) == 10


def test_an_exception_result_is_raised_in_its_caller() -> None:
    started = threading.Event()
    release = threading.Event()

    def handle(items: Sequence[int]) -> list[int | Exception]:
        started.set()
        assert release.wait(PATIENCE)
        return [ValueError(str(item)) if item % 2 else item for item in items]

    call: GroupCommit[int, int] = GroupCommit(handle)
    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(call, 0)]
        assert started.wait(PATIENCE)
        futures += [pool.submit(call, number) for number in (1, 2, 3)]
        assert wait_until(lambda: len(call._waiting) == 3, PATIENCE)
        release.set()
        assert [futures[0].result(PATIENCE), futures[2].result(PATIENCE)] == [0, 2]
        for number in (1, 3):
            with pytest.raises(ValueError, match=str(number)):
                futures[number].result(PATIENCE)


def failing(gate: Gate, error: Exception, bad: set[int], transient: type[Exception]) -> GroupCommit[int, int]:
    """Its work raises the error wherever one of these is in the group, and has done nothing then."""

    def handle(items: Sequence[int]) -> list[int | Exception]:
        if bad.intersection(items):
            raise error
        return gate._handle(items)

    return GroupCommit(handle, transient=(transient,))


def test_a_work_error_reaches_only_callers_at_fault() -> None:
    gate = Gate()
    gate.call = failing(gate, ValueError("a NUL"), {2, 5}, errors.Transient)
    with ThreadPoolExecutor(8) as pool:
        futures = gate.fill(pool, 6)
        gate.open.set()
        assert [futures[number].result(PATIENCE) for number in (0, 1, 3, 4, 6)] == [0, 10, 30, 40, 60]
        for number in (2, 5):
            with pytest.raises(ValueError, match="a NUL"):
                futures[number].result(PATIENCE)


def test_a_transient_error_reaches_only_its_group() -> None:
    gate = Gate()
    gate.call = failing(gate, OSError("the disk is full"), {2}, OSError)
    with ThreadPoolExecutor(5) as pool:
        futures = gate.fill(pool, 3)
        gate.open.set()
        assert futures[0].result(PATIENCE) == 0
        for future in futures[1:]:
            with pytest.raises(OSError, match="disk is full"):
                future.result(PATIENCE)
        assert gate.call(4) == 40


@pytest.mark.parametrize("results", [[], [1], [1, 2, 3, 4]])
def test_a_wrong_number_of_results_frees_all_callers(results: list[int]) -> None:
    gate = Gate()

    def handle(items: Sequence[int]) -> list[int | Exception]:
        done = gate._handle(items)
        return done if len(gate.groups) == 1 else list(results)

    gate.call = GroupCommit(handle)
    with ThreadPoolExecutor(5) as pool:
        futures = gate.fill(pool, 3)
        gate.open.set()
        for future in futures[1:]:
            with contextlib.suppress(ValueError):
                assert future.result(PATIENCE) in results


def test_many_threads_each_get_their_own() -> None:
    gate = Gate(limit=7)
    gate.open.set()
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(gate.call, range(500))) == [number * 10 for number in range(500)]
    assert sorted(item for group in gate.groups for item in group) == list(range(500))
    assert gate.most == 1


def test_a_window_ends_early_once_all_have_come() -> None:
    sizes: list[int] = []

    def handle(items: Sequence[int]) -> list[int | Exception]:
        sizes.append(len(items))
        return [item * 2 for item in items]

    grouped: GroupCommit[int, int] = GroupCommit(handle, window=3600.0)
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(grouped, range(2))) == [0, 2]
    assert sizes == [2, 2, 2]
