"""The guards of a live migration are enough in small worlds, and the check of them would notice a missing one."""

from __future__ import annotations

import pytest

from tests.faults.live_model import GUARDS, Model, search, without


@pytest.mark.parametrize("before", ["on", "paused"])
def test_no_guarded_live_migration_state_is_wrong(before: str) -> None:
    found = search(Model(before=before), limit=150_000)

    assert found.broken is None


@pytest.mark.parametrize("before", ["on", "paused"])
def test_guarded_live_migrations_come_to_rest(before: str) -> None:
    found = search(Model(deletes=False, before=before))

    assert (found.broken, found.complete) == (None, True)
    assert set(found.ends) == {"done", "given up"}


WHY = {
    "held-row": 5,
    "twin-decides": 13,
    "closes": 23,
    "switch-received": 6,
    "looks-later": 18,
    "incoming-stays": 12,
    "undo-waits": 19,
    "ask-number": 35,
    "power-before": 11,
}
"""The shortest violation without each guard, in steps."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("guard", "length"), WHY.items())
def test_a_missing_live_migration_guard_is_detected(guard: str, length: int) -> None:
    found = search(without(guard), limit=100_000)

    assert found.broken is not None, GUARDS[guard]
    assert len(found.trace) == length


def test_every_guard_of_live_migrations_is_looked_for() -> None:
    assert WHY.keys() == GUARDS.keys()
