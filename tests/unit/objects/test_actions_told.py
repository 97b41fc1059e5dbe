"""An action is its start, and what the instance's row says of it."""

from __future__ import annotations

import pytest

from objects.action import Kind, Started, told
from objects.instance import Attempt, Failure, FailureClass, Instance, State

CREATED = Started(kind=Kind.CREATE, request_id="req-1", started_at=10.0)
DELETED = Started(kind=Kind.DELETE, request_id=None, started_at=50.0)
FAILED = Attempt(
    number=1, host="h1", node="h1", failure=Failure(kind=FailureClass.HOST, error="BuildFailed", message="no disk", at=20.0)
)


def a_row(state: State, **changes: object) -> Instance:
    return Instance(uuid="a", state=state, fence=1, **{"host": "h2", "attempt": 2, "history": (FAILED,), **changes})  # type: ignore[arg-type]  # a test's shorthand


def spans(row: Instance | None) -> list[tuple[str, float, float | None, str | None]]:
    return [(event.host, event.started_at, event.finished_at, event.error) for event in told(CREATED, row).events]


def test_each_attempt_begins_where_the_one_before_has_ended() -> None:
    failed = ("h1", 10.0, 20.0, "BuildFailed")
    assert spans(a_row(State.BUILDING)) == [failed, ("h2", 20.0, None, None)]
    assert spans(a_row(State.ACTIVE, launched_at=30.0)) == [failed, ("h2", 20.0, 30.0, None)]
    assert spans(a_row(State.ERROR)) == [failed]
    assert spans(a_row(State.STAGED, history=())) == []
    assert spans(None) == []


@pytest.mark.parametrize(
    ("row", "finished"),
    [
        (a_row(State.BUILDING), None),
        (a_row(State.ACTIVE, launched_at=30.0), 30.0),
        (a_row(State.ERROR, fault="no"), 20.0),
        (a_row(State.DELETING), None),
        (a_row(State.DELETED, terminated_at=60.0), 60.0),
        (a_row(State.DELETED, launched_at=30.0, terminated_at=60.0), 30.0),
    ],
)
def test_a_creation_is_over_with_its_guest_its_fault_or_its_delete(row: Instance, finished: float | None) -> None:
    action = told(CREATED, row)
    assert (action.finished_at, action.fault, action.request_id) == (finished, row.fault, "req-1")


def test_a_delete_is_over_when_the_instance_is() -> None:
    assert told(DELETED, a_row(State.DELETING)).finished_at is None
    over = told(DELETED, a_row(State.DELETED, terminated_at=60.0))
    assert (over.started_at, over.finished_at, over.events) == (50.0, 60.0, ())
