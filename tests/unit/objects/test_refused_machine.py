"""When a second machine may run as a host."""

from __future__ import annotations

import pytest

from objects.machine import ATTEMPT_GAP_S, Machine, RefusedMachine, refusal_of

DOWN_S = 60.0
OLD, NEW, THIRD = (Machine(id=letter, name=f"machine {letter}") for letter in "abc")


def wait(last_seen: float, asking: Machine, attempts: list[float], refused: RefusedMachine | None = None) -> RefusedMachine | None:
    """The answer to the last of these attempts, whose times are given."""
    for now in attempts:
        refused = refusal_of(OLD.id, last_seen, refused, asking, now, DOWN_S)
    return refused


@pytest.mark.parametrize("admitted", [None, NEW.id])
def test_the_first_machine_and_the_same_one_may(admitted: str | None) -> None:
    assert refusal_of(admitted, 100.0, None, NEW, 100.0, DOWN_S) is None


def test_an_older_agent_may_name_no_machine() -> None:
    assert refusal_of(OLD.id, 100.0, None, Machine(id=""), 100.0, DOWN_S) is None


def test_another_machine_is_refused_despite_earlier_silence() -> None:
    assert refusal_of(OLD.id, 0.0, None, NEW, 5000.0, DOWN_S) == RefusedMachine(id="b", name="machine b", since=5000.0, last=5000.0)


def test_another_machine_may_run_after_silence_meanwhile() -> None:
    attempts = [100.0 + 5.0 * n for n in range(12)]
    assert wait(99.0, NEW, attempts) is not None
    assert wait(99.0, NEW, [*attempts, 160.0]) is None


def test_a_sign_of_life_begins_the_wait_anew() -> None:
    refused = wait(130.0, NEW, [135.0], wait(99.0, NEW, [100.0 + 5.0 * n for n in range(7)]))
    assert refused is not None
    assert refused.since == 135.0


def test_silence_counts_only_from_attempt_to_attempt() -> None:
    """The cell's conductors may have been down meanwhile, and have heard nobody."""
    refused = wait(99.0, NEW, [100.0, 100.0 + 10 * ATTEMPT_GAP_S])
    assert refused is not None
    assert refused.since == refused.last


def test_machines_do_not_share_a_wait() -> None:
    refused = wait(99.0, THIRD, [159.0], wait(99.0, NEW, [100.0 + 5.0 * n for n in range(12)]))
    assert refused is not None
    assert (refused.id, refused.since) == ("c", 159.0)


def test_an_operator_may_admit_another_machine_immediately() -> None:
    accepted = RefusedMachine(id=NEW.id, name="b", since=0.0, last=0.0, accepted=True)
    assert refusal_of(OLD.id, 100.0, accepted, NEW, 100.0, DOWN_S) is None
    assert refusal_of(OLD.id, 100.0, accepted, THIRD, 100.0, DOWN_S) is not None
