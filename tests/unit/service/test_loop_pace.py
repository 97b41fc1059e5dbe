"""The pauses of a loop: they grow while nothing happens, and a doorbell shortens the one under way."""

from __future__ import annotations

import threading
import time

import pytest

from service.pace import Pace
from service.periodic import Periodic, wait_until

PATIENCE = 90.0
NEVER = 3600.0


def rounds(pace: Pace, count: int) -> list[float]:
    """The pauses of so many rounds, none of which is waited for."""
    found = []
    for _ in range(count):
        pace.begin_round()
        pace.wake_now()
        begun = pace.next_due
        pace.wait_round()
        found.append(pace.next_due - begun)
    return found


def test_idle_pauses_double_up_to_the_longest() -> None:
    assert rounds(Pace(1.0, 10.0), 6) == pytest.approx([1, 2, 4, 8, 10, 10], rel=0.15)


def test_a_loop_without_idle_pause_retains_its_interval() -> None:
    assert rounds(Pace(1.0), 3) == pytest.approx([1, 1, 1], rel=0.15)


def test_activity_makes_the_next_pause_short() -> None:
    pace = Pace(1.0, 10.0)
    rounds(pace, 5)
    assert pace.is_idle
    pace.hurry_for()
    assert rounds(pace, 3) == pytest.approx([1, 2, 4], rel=0.15)
    pace.hurry_for(lasting=NEVER)
    assert rounds(pace, 3) == pytest.approx([1, 1, 1], rel=0.15)


class Clock:
    """Seconds that pass only while a round takes them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pause_after(self, pace: Pace, seconds: float, *, fails: bool = False) -> float:
        """The pause after a busy round that takes so long, which is not waited for."""
        pace.hurry_for()
        pace.begin_round()
        self.now += seconds
        if fails:
            pace.note_failure()
        pace.wake_now()
        pace.wait_round()
        return pace.next_due - self.now


def test_an_adaptive_loop_rests_in_proportion_to_rounds() -> None:
    clock = Clock()
    pace = Pace(1.0, 60.0, clock)
    assert clock.pause_after(pace, 0.1) == pytest.approx(1.0, rel=0.15)
    assert clock.pause_after(pace, 0.5) == pytest.approx(2.0)
    assert clock.pause_after(pace, 50.0) == pytest.approx(8.0), "and no longer than that"
    assert clock.pause_after(pace, 50.0, fails=True) == pytest.approx(1.0, rel=0.15), "how long a failure takes says nothing"
    assert clock.pause_after(Pace(1.0, None, clock), 50.0) == pytest.approx(1.0, rel=0.15), "a fixed interval may renew leases"


def test_a_doorbell_does_not_shorten_a_rest() -> None:
    clock = Clock()
    pace = Pace(1.0, 60.0, clock)
    assert clock.pause_after(pace, 1.0) == pytest.approx(4.0)
    rested = pace.next_due
    pace.hurry_for()
    assert pace.next_due == rested
    clock.now = rested
    pace.hurry_for()
    assert pace.next_due == rested


def test_a_doorbell_ends_a_long_pause_soon() -> None:
    pace = Pace(0.01, NEVER)
    rounds(pace, 30)
    pace.begin_round()
    ended = threading.Event()

    def pause() -> None:
        pace.wait_round()
        ended.set()

    thread = threading.Thread(target=pause, daemon=True)
    thread.start()
    assert wait_until(lambda: pace.next_due > time.monotonic() + NEVER / 2, PATIENCE)
    while not ended.wait(0.01):
        pace.hurry_for()
    thread.join(PATIENCE)


def test_a_failing_loop_does_not_slow_down() -> None:
    runs = threading.Semaphore(0)

    def fail() -> None:
        runs.release()
        raise ValueError("a bug")

    periodic = Periodic("failing", Pace(0.001, NEVER), fail).start()
    try:
        for _ in range(30):
            assert runs.acquire(timeout=PATIENCE)
    finally:
        periodic.stop()


def test_a_skipped_sweep_is_put_off() -> None:
    pace = Pace(NEVER)
    pace.begin_round()
    thread = threading.Thread(target=pace.wait_round, daemon=True)
    thread.start()
    assert wait_until(lambda: pace.next_due > time.monotonic() + NEVER / 2, PATIENCE)
    first = pace.next_due
    pace.postpone_round()
    assert pace.next_due != first
    pace.wake_now()
    thread.join(PATIENCE)
