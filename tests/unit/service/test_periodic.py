"""The thread behind every sweep: it goes on whatever happens, runs when woken, and ends when asked to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from objects import errors
from service import health
from service.periodic import Every, Periodic, wait_until

PATIENCE = 90.0
NEVER = 3600.0
"""An interval after which nothing happens within a test."""


class Work:
    """Counts its runs; each does what the next entry of ``script`` says."""

    def __init__(self, *script: Callable[[], bool | None]) -> None:
        self.script = list(script)
        self.runs = 0
        self.begun = threading.Semaphore(0)

    def __call__(self) -> bool | None:
        self.runs += 1
        self.begun.release()
        return self.script.pop(0)() if self.script else None

    def wait(self, runs: int) -> None:
        assert wait_until(lambda: self.runs >= runs, PATIENCE), self.runs


@pytest.fixture
def started() -> Iterator[list[Periodic]]:
    started: list[Periodic] = []
    yield started
    for periodic in started:
        periodic.stop()


def start(started: list[Periodic], interval: float, work: Callable[[], bool | None]) -> Periodic:
    started.append(Periodic("sweep", interval, work).start())
    return started[-1]


def fail(error: Exception) -> Callable[[], bool]:
    def run() -> bool:
        raise error

    return run


def test_a_job_runs_immediately_and_after_every_interval(started: list[Periodic]) -> None:
    work = Work()
    start(started, 0.01, work)
    work.wait(5)


def test_it_runs_when_woken_however_long_the_interval(started: list[Periodic]) -> None:
    work = Work()
    periodic = start(started, NEVER, work)
    for runs in (1, 2, 3):
        work.wait(runs)
        periodic.wake_now()
    work.wait(4)


def test_a_wake_during_a_run_is_not_lost(started: list[Periodic]) -> None:
    release = threading.Event()
    work = Work(lambda: release.wait(PATIENCE) and None)
    periodic = start(started, NEVER, work)
    work.wait(1)
    periodic.wake_now()
    release.set()
    work.wait(2)


def test_a_job_continues_without_pause_while_work_remains(started: list[Periodic]) -> None:
    work = Work(*[lambda: True] * 4)
    start(started, NEVER, work)
    work.wait(5)
    assert work.script == []


def test_errors_neither_end_it_nor_hasten_it(started: list[Periodic]) -> None:
    work = Work(fail(ValueError("a")), fail(errors.CellUnavailable("b")), fail(KeyError("c")))
    periodic = start(started, NEVER, work)
    for runs in (1, 2, 3):
        work.wait(runs)
        periodic.wake_now()
    work.wait(4)


def test_a_repeated_error_and_its_end_appear_once(started: list[Periodic], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "service.periodic")
    broken = fail(errors.CellUnavailable("cell 'east' does not answer"))
    work = Work(broken, broken, broken, fail(errors.CellUnavailable("another")), lambda: None, lambda: None)
    start(started, 0.01, work)
    work.wait(8)
    assert [record.message for record in caplog.records] == [
        "sweep: CellUnavailable: cell 'east' does not answer",
        "sweep: CellUnavailable: another",
        "sweep: works again",
    ]
    assert not any(record.exc_info for record in caplog.records)


def test_a_program_fault_is_logged_with_its_traceback(started: list[Periodic], caplog: pytest.LogCaptureFixture) -> None:
    work = Work(fail(ZeroDivisionError("a bug")))
    start(started, 0.01, work)
    work.wait(2)
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_stop_waits_for_the_run_under_way(started: list[Periodic]) -> None:
    ended: list[bool] = []
    release = threading.Event()

    def run() -> None:
        release.wait(PATIENCE)
        ended.append(True)

    work = Work(run)
    periodic = start(started, NEVER, work)
    work.wait(1)
    threading.Timer(0.1, release.set).start()
    periodic.stop()
    assert ended == [True]
    assert work.runs == 1


def test_stop_ends_a_run_that_always_has_more(started: list[Periodic]) -> None:
    runs = [0]

    def endless() -> bool:
        runs[0] += 1
        return True

    periodic = start(started, NEVER, endless)
    assert wait_until(lambda: runs[0] > 10, PATIENCE)
    periodic.stop()
    at_stop = runs[0]
    assert not wait_until(lambda: runs[0] > at_stop, 0.1)


def test_stops_from_within_and_before_start_return() -> None:
    stopped = threading.Event()
    periodics: list[Periodic] = []

    def run() -> None:
        periodics[0].stop()
        stopped.set()

    periodics.append(Periodic("own", NEVER, run))
    periodics[0].start()
    assert stopped.wait(PATIENCE)
    Periodic("never", NEVER, lambda: None).stop()


def test_every_is_true_once_per_period() -> None:
    slow = Every(NEVER)
    assert [slow() for _ in range(3)] == [True, False, False]
    always = Every(0.0)
    assert [always() for _ in range(3)] == [True, True, True]
    quick = Every(0.01)
    assert quick()
    assert wait_until(quick, PATIENCE)


def test_wait_until_says_whether_it_came_true() -> None:
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), PATIENCE, pause=0.0)
    assert not wait_until(lambda: False, 0.0)


def test_a_slow_job_can_await_its_first_run(started: list[Periodic]) -> None:
    work = Work()
    periodic = Periodic("test", NEVER, work, at_once=False).start()
    started.append(periodic)
    assert not work.begun.acquire(timeout=0.1)
    periodic.wake_now()
    work.wait(1)


def test_an_unending_round_is_reported_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health.BOARD, "stuck", 0.2)
    goes_on = threading.Event()
    periodic = Periodic("stuck", 0.01, lambda: not goes_on.wait(PATIENCE)).start()
    try:
        assert wait_until(lambda: "its round has not ended for" in periodic.find_trouble(), PATIENCE)
        goes_on.set()
        assert wait_until(lambda: periodic.find_trouble() == "", PATIENCE)
    finally:
        goes_on.set()
        periodic.stop()
