"""The guards of operations after the boot are enough in small worlds, and the check of them would notice a missing one."""

from __future__ import annotations

import random

import pytest

from tests.faults.moves_check import EVERYTHING, MIGRATION, ONE, THREE, World, search, soonest, walk
from tests.faults.moves_model import GUARDS, SOFT_DELETE

IN_PLACE = World("stop+start+reboot", ONE, 0, bodies=1)
SHELVE = World("shelve", ONE, 0, bodies=2)
IMAGE = World("image", ONE, 0, bodies=1)
RESTORED = World(SOFT_DELETE, ONE, 0, bodies=1)
INTERFACE = World("attach", ONE, 0, bodies=1)
TWO_IN_A_ROW = World("stop", ONE, 0, operations=2, bodies=1)
"""The second stop is asked for after the first is done, or after its deadline passed and the server was to be on again."""


@pytest.mark.parametrize(
    ("world", "deletes", "states", "ends"),
    [
        (MIGRATION, True, 20_139, {"body 0 on, size 1", "body 1 on, size 1", "deleted"}),
        (IN_PLACE, True, 9_561, {"body 0 on, size 1", "body 0 off, size 1", "deleted"}),
        (SHELVE, True, 4_991, {"body 0 on, size 1", "shelved", "deleted"}),
        (IMAGE, True, 3_753, {"body 0 on, size 1", "deleted"}),
        (RESTORED, True, 6_623, {"body 0 on, size 1", "soft-deleted", "deleted"}),
        (INTERFACE, True, 3_359, {"body 0 on, size 1", "deleted"}),
        (TWO_IN_A_ROW, False, 72_349, {"body 0 on, size 1", "body 0 off, size 1"}),
    ],
    ids=["migration", "in place", "shelve", "image", "soft delete", "interface", "two in a row"],
)
def test_no_guarded_state_after_a_boot_is_wrong(world: World, deletes: bool, states: int, ends: set[str]) -> None:
    found = search(world.model(deletes=deletes))

    assert (found.broken, found.complete) == (None, True)
    assert found.states == states
    assert set(found.ends) == ends


def test_guarded_walks_through_four_operations_come_to_rest() -> None:
    model, rng = World(EVERYTHING, THREE, 4, operations=4, bodies=4).model(), random.Random(7)

    assert [found.trace for found in (walk(model, rng) for _ in range(100)) if found.broken] == []


def test_random_walks_through_shelving_and_moves_rest() -> None:
    model, rng = World("shelve+unshelve+stop+migrate+evacuate", THREE, 4, operations=5, bodies=8).model(), random.Random(7)

    found = [walk(model, rng) for _ in range(60)]
    assert [each.trace for each in found if each.broken] == []
    assert any("shelved" in each.ends for each in found)


WHY = {
    "hold-first": 7,
    "hold-row": 7,
    "hold-repeats": 13,
    "ask-number": 15,
    "begin": 15,
    "begin-over": 9,
    "done-number": 8,
    "reboot-once": 10,
    "return-asks": 14,
    "resume-failed": 12,
    "switch-state": 22,
    "switch-active": 16,
    "late-loser": 14,
    "undo-state": 22,
    "undo-waits": 20,
    "undo-request": 3,
    "twin-deadline": 27,
    "verify-state": 33,
    "revert-hold": 25,
    "delete-all": 23,
    "delete-op": 2,
    "one-op": 8,
    "new-size": 27,
    "restart": 18,
    "snapshot-first": 3,
    "snapshot-off": 12,
    "snapshot-kept": 16,
    "image-told": 5,
    "image-gone": 14,
    "reclaim-state": 4,
    "nic-gone": 13,
    "nic-mends": 14,
    "ended-task": 13,
}
"""Every guard, and in how few steps an invariant breaks without it in the world that needs it soonest."""
SECOND_LINES = {"hold-done", "hold-number", "keys-stay", "fail-waits", "nic-over"}
"""Guards that show nothing within the bounds of these worlds. ``fail-waits`` and ``nic-over`` do in larger
ones, below.
"""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("guard", "length"), WHY.items())
def test_a_missing_move_guard_is_detected(guard: str, length: int) -> None:
    found = search(soonest(guard).model(without=[guard]), limit=100_000)

    assert found.broken is not None, GUARDS[guard]
    assert len(found.trace) == length


def test_the_twin_waits_although_a_hold_may_fail() -> None:
    found = search(soonest("hold-done").model(without=["hold-repeats", "hold-done"]), limit=100_000)

    assert found.broken is not None
    assert found.broken.startswith("M1")


def test_a_server_called_failed_keeps_a_pending_start() -> None:
    """The stop was late and undone, its report was lost, and the host has not carried out the start when the server is failed."""
    world = World("stop+fail", ONE, 1, operations=2, bodies=1)
    found = search(world.model(deletes=False, without=["fail-waits"]), limit=150_000)

    assert found.broken is not None
    assert found.broken.startswith("E3")


def test_a_stop_does_not_forget_a_returned_interface() -> None:
    """The detach was late, and its host has not given the interface back when the server is stopped."""
    world = World("detach+stop", ONE, 0, operations=2, bodies=1)
    found = search(world.model(deletes=False, without=["nic-over"]), limit=150_000)

    assert found.broken is not None
    assert found.broken.startswith("E8")


def test_every_guard_of_moves_is_looked_for() -> None:
    assert WHY.keys() | SECOND_LINES == GUARDS.keys()
