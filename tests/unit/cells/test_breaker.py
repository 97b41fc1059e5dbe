"""The breaker, walked through its states by a clock of the test's own."""

from __future__ import annotations

from cells.breaker import Breaker
from tests.support.clock import Clock


def _breaker(clock: Clock) -> Breaker:
    return Breaker("cell 'east'", threshold=3, pause=5.0, clock=clock, wall=lambda: 1_700_000_000.0)


def test_scattered_failures_do_not_open_it() -> None:
    breaker = _breaker(Clock(100.0))
    for _ in range(10):
        breaker.note_failure("late")
        breaker.note_failure("late")
        breaker.note_success()
    assert breaker.get_refusal() is None
    assert breaker.silent_since is None


def test_it_opens_at_the_threshold_with_its_cause() -> None:
    breaker = _breaker(Clock(100.0))
    for _ in range(3):
        assert breaker.get_refusal() is None
        breaker.note_failure("its database gave no answer within 2 s")
    assert (
        breaker.get_refusal()
        == "cell 'east' has not answered since 2023-11-14 22:13:20 UTC (its database gave no answer within 2 s)"
    )
    assert breaker.silent_since == 1_700_000_000.0


def test_lets_one_probe_through_after_the_pause() -> None:
    clock = Clock(100.0)
    breaker = _breaker(clock)
    for _ in range(3):
        breaker.note_failure("down")
    clock.now += 4.9
    assert breaker.get_refusal()
    clock.now += 0.2
    assert breaker.get_refusal() is None, "the probe"
    assert breaker.get_refusal(), "all others, while it is under way"


def test_a_probe_closes_it_or_starts_another_pause() -> None:
    clock = Clock(100.0)
    breaker = _breaker(clock)
    for _ in range(3):
        breaker.note_failure("down")
    clock.now += 6
    assert breaker.get_refusal() is None
    clock.now += 4
    breaker.note_failure("still down")
    clock.now += 4.9
    assert breaker.get_refusal() is not None, "the pause counts from the end of the probe"
    clock.now += 0.2
    assert breaker.get_refusal() is None
    breaker.note_success()
    assert breaker.get_refusal() is None
    assert breaker.silent_since is None


def test_a_silent_probe_does_not_keep_it_open() -> None:
    clock = Clock(100.0)
    breaker = _breaker(clock)
    for _ in range(3):
        breaker.note_failure("down")
    clock.now += 6
    assert breaker.get_refusal() is None
    clock.now += 5.1
    assert breaker.get_refusal() is None, "the next probe"
