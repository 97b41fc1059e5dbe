"""Which records let a guest that reports itself stay: one case for each line of the table in ``docs/protocol.md``."""

from __future__ import annotations

import msgspec
import pytest

from objects import lifecycle
from objects.feed import EventKind
from objects.instance import Attempt, Failure, FailureClass, Instance, State
from objects.lifecycle import Change, Refused
from objects.task import Power, TaskState
from objects.unknown_guest import UnknownGuest

FAILURE = Failure(kind=FailureClass.HOST, error="HostDown", message="", at=1.0)


def row(state: State, **changes: object) -> Instance:
    base = Instance(uuid="u", state=state, fence=3, attempt=2, builder="h1:a", host="h1", node="h1", version=5)
    return msgspec.structs.replace(base, **changes)


def past(number: int, started_at: float | None) -> tuple[Attempt, ...]:
    return (Attempt(number=number, host="h1", node="h1", failure=FAILURE, started_at=started_at),)


def asked(record: Instance, *, confirmed: bool = False) -> lifecycle.Outcome:
    """The guest of attempt 2 under fence 3, by h1:a, reports that it runs on h1."""
    return lifecycle.confirm_active(record, "h1", 3, 2, "h1:a", 9.0, confirmed=confirmed)


@pytest.mark.parametrize("state", [State.STAGED, State.SCHEDULED])
def test_a_grant_lost_by_the_cell_is_replaced(state: State) -> None:
    outcome = asked(row(state, builder=None))
    assert isinstance(outcome, Change)
    assert (outcome.row.state, outcome.row.builder, outcome.event) == (State.ACTIVE, "h1:a", EventKind.ACTIVE)
    assert (outcome.row.building_at, outcome.row.launched_at) == (9.0, 9.0)


KEPT = {
    "renamed-active": row(State.ACTIVE, host="h1.example.org"),
    "renamed-building": row(State.BUILDING, host="h1.example.org"),
    "other-builder": row(State.ACTIVE, builder="h1:b"),
    "other-builder-building": row(State.BUILDING, builder="h2:b", host="h2"),
    "not-granted-elsewhere": row(State.SCHEDULED, builder=None, host="h2"),
    "staged-elsewhere": row(State.STAGED, builder=None, host="h2"),
    "earlier-attempt": row(State.BUILDING, attempt=1, builder="h2:b", host="h2"),
    "earlier-attempt-active": row(State.ACTIVE, attempt=1, builder="h2:b", host="h2"),
    "earlier-attempt-scheduled": row(State.SCHEDULED, attempt=1, builder=None),
    "lease-since-a-restore": row(State.BUILDING, fence=2**32 + 1, attempt=1, builder="h2:b"),
    "earlier-fence": row(State.ACTIVE, fence=2, attempt=4),
    "record-replaced": row(State.ERROR, attempt=1, builder=None),
    "error-of-this-attempt": row(State.ERROR, builder=None),
    "never-granted": row(State.ERROR, attempt=3, builder=None, history=past(2, None)),
    "never-granted-and-active-elsewhere": row(State.ACTIVE, attempt=3, builder="h2:b", host="h2", history=past(2, None)),
}


@pytest.mark.parametrize("record", KEPT.values(), ids=KEPT)
def test_a_guest_not_proven_superseded_is_retained(record: Instance) -> None:
    outcome = asked(record)
    assert isinstance(outcome, Refused)
    assert (outcome.done, outcome.keep) == (False, True)


SUPERSEDED = {
    "rescheduled": row(State.SCHEDULED, attempt=3, builder=None, host="h2", history=past(2, 1.0)),
    "active-elsewhere": row(State.ACTIVE, attempt=3, builder="h2:b", host="h2", history=past(2, 1.0)),
    "deadline": row(State.ERROR, attempt=3, builder=None, history=past(2, 1.0)),
    "host-dead-while-rolled-back": row(State.ERROR, attempt=3, builder=None, rolled_back="another failed"),
    "later-fence": row(State.BUILDING, fence=4, attempt=1, builder="h2:b"),
}
DELETED = {
    "deleting": row(State.DELETING),
    "deleted": row(State.DELETED, builder=None),
    "tombstone": row(State.DELETED, fence=0, attempt=0, builder=None, host=None),
    "deleting-earlier-attempt": row(State.DELETING, attempt=1, builder="h2:b", host="h2"),
    "rolling-back": row(State.DELETING, rolled_back="another failed"),
    "rolled-back": row(State.ERROR, attempt=3, builder=None, rolled_back="another failed"),
}


@pytest.mark.parametrize("record", (SUPERSEDED | DELETED).values(), ids=SUPERSEDED | DELETED)
def test_what_proves_it_ends_the_guest(record: Instance) -> None:
    outcome = asked(record)
    assert isinstance(outcome, Refused)
    assert (outcome.done, outcome.keep) == (False, False)


@pytest.mark.parametrize("name", ["rescheduled", "active-elsewhere", "deadline"])
def test_a_failed_attempt_proves_nothing_about_confirmed_guests(name: str) -> None:
    """An instance that was ACTIVE ends by a delete or a roll-back only: the record has lost that it was."""
    outcome = asked(SUPERSEDED[name], confirmed=True)
    assert isinstance(outcome, Refused)
    assert outcome.keep


@pytest.mark.parametrize("record", DELETED.values(), ids=DELETED)
def test_a_delete_ends_a_guest_that_was_confirmed(record: Instance) -> None:
    outcome = asked(record, confirmed=True)
    assert isinstance(outcome, Refused)
    assert not outcome.keep


GUEST = UnknownGuest(
    uuid="u", name="n", node="n1", fence=3, attempt=2, builder="h1:a", vcpus=1, memory_mb=1, disk_gb=1, reason="no record"
)
ADOPTABLE = {
    **KEPT,
    "staged": row(State.STAGED, builder=None),
}
del ADOPTABLE["earlier-fence"], ADOPTABLE["lease-since-a-restore"], ADOPTABLE["other-builder"], ADOPTABLE["earlier-attempt-active"]
del ADOPTABLE["never-granted-and-active-elsewhere"]


@pytest.mark.parametrize("record", ADOPTABLE.values(), ids=ADOPTABLE)
def test_an_adopted_guest_is_the_instances(record: Instance) -> None:
    outcome = lifecycle.adopt_guest(record, "h1", GUEST, 9.0)
    assert isinstance(outcome, Change)
    after = outcome.row
    assert (after.state, after.host, after.node, after.attempt, after.builder) == (State.ACTIVE, "h1", "n1", 2, "h1:a")
    assert after.version == record.version + 1
    again = asked(after)
    assert isinstance(again, Refused)
    assert again.done, "its next report is accepted"


REFUSED = {
    **{name: SUPERSEDED[name] for name in ("rescheduled", "active-elsewhere", "later-fence")},
    **{name: record for name, record in DELETED.items() if record.state is not State.ERROR},
    "other-builder": KEPT["other-builder"],
    "earlier-attempt-active": KEPT["earlier-attempt-active"],
    "earlier-fence": KEPT["earlier-fence"],
}


@pytest.mark.parametrize("record", REFUSED.values(), ids=REFUSED)
def test_no_guest_is_adopted_against_deletes_or_guests(record: Instance) -> None:
    outcome = lifecycle.adopt_guest(record, "h1", GUEST, 9.0)
    assert isinstance(outcome, Refused)
    assert not outcome.done


def test_a_restored_row_learns_its_latest_guest_task() -> None:
    record = row(State.ACTIVE, power=Power.ON, task_number=4, task_state=TaskState.ORDERED)
    outcome = lifecycle.confirm_active(record, "h1", 3, 2, "h1:a", 9.0, last_task=8, power=Power.HELD)
    assert isinstance(outcome, Change)
    learned = (outcome.row.power, outcome.row.task_number, outcome.row.task_state, outcome.event)
    assert learned == (Power.HELD, 8, TaskState.DONE, EventKind.TASK)


@pytest.mark.parametrize("number", [0, 3, 4, lifecycle.LARGEST_LEARNED_TASK + 1])
def test_a_row_learns_no_other_task(number: int) -> None:
    record = row(State.ACTIVE, task_number=4, task_state=TaskState.ORDERED)
    outcome = lifecycle.confirm_active(record, "h1", 3, 2, "h1:a", 9.0, last_task=number, power=Power.HELD)
    assert isinstance(outcome, Refused)
    assert outcome.done


def test_a_staged_row_takes_guests_of_later_fences() -> None:
    outcome = lifecycle.adopt_guest(row(State.STAGED, fence=1, builder=None), "h1", GUEST, 9.0)
    assert isinstance(outcome, Change)
    assert (outcome.row.state, outcome.row.fence) == (State.ACTIVE, 3)
