"""An action is its start, and what the instance's row says of it."""

from __future__ import annotations

import msgspec
import pytest

from objects.action import ActionKind, Stage, Started, action_with_events
from objects.decision import Decision
from objects.instance import Attempt, Failure, FailureClass, Instance, Server, State

CREATED = Started(kind=ActionKind.CREATE, request_id="req-1", started_at=10.0)
DELETED = Started(kind=ActionKind.DELETE, request_id=None, started_at=50.0)
FAILED = Attempt(
    number=1,
    host="h1",
    node="h1",
    failure=Failure(kind=FailureClass.HOST, error="BuildFailed", message="no disk", at=20.0),
    started_at=15.0,
)


SERVER = Server(
    uuid="a",
    batch_id="b",
    project_id="p",
    user_id="u",
    name="web",
    state="building",
    created_at=10.0,
    updated_at=10.0,
    mapped_at=13.0,
)


def a_row(state: State, **changes: object) -> Instance:
    return Instance(uuid="a", state=state, fence=1, **{"host": "h2", "attempt": 2, "history": (FAILED,), **changes})  # type: ignore[arg-type]  # a test's shorthand


Span = tuple[str | None, float, float | None, str | None]


def spans(row: Instance | None, stage: Stage = Stage.BUILD) -> list[Span]:
    events = action_with_events(CREATED, SERVER, row).events
    return [(event.host, event.started_at, event.finished_at, event.error) for event in events if event.stage is stage]


def test_an_attempt_begins_where_the_previous_ended() -> None:
    failed = ("h1", 15.0, 20.0, "BuildFailed")
    assert spans(a_row(State.SCHEDULED)) == [failed]
    assert spans(a_row(State.BUILDING, building_at=22.0)) == [failed, ("h2", 22.0, None, None)]
    assert spans(a_row(State.ACTIVE, building_at=22.0, launched_at=30.0)) == [failed, ("h2", 22.0, 30.0, None)]
    assert spans(a_row(State.ERROR)) == [failed]
    assert spans(a_row(State.STAGED, history=())) == []
    assert spans(None) == []


def test_an_order_is_running_until_its_host_begins() -> None:
    first = ("h1", 13.0, 15.0, None)
    assert spans(a_row(State.SCHEDULED), Stage.ORDER) == [first, ("h2", 20.0, None, None)]
    assert spans(a_row(State.BUILDING, building_at=22.0), Stage.ORDER) == [first, ("h2", 20.0, 22.0, None)]


def test_older_rows_without_times_show_known_spans() -> None:
    old = msgspec.structs.replace(FAILED, started_at=None)
    assert spans(a_row(State.BUILDING, history=(old,))) == [("h1", 13.0, 20.0, "BuildFailed"), ("h2", 20.0, None, None)]


def test_creation_stages_stand_in_their_order() -> None:
    refused = Decision(id="d1", batch_id="b", request_id="req-1", at=11.0, driver="filter", hosts=0, message="No valid host.")
    placed = Decision(id="d2", batch_id="b", request_id="req-1", at=12.0, driver="filter", hosts=2, elapsed_ms=500.0)
    started = msgspec.structs.replace(CREATED, written_at=12.5)
    events = action_with_events(started, SERVER, a_row(State.ACTIVE, building_at=22.0, launched_at=30.0), [refused, placed]).events
    assert [(e.stage, e.started_at, e.finished_at, e.error) for e in events] == [
        (Stage.ACCEPT, 10.0, 10.0, None),
        (Stage.SCHEDULE, 11.0, 11.0, "NoValidHost"),
        (Stage.SCHEDULE, 11.5, 12.0, None),
        (Stage.STAGE, 12.0, 12.5, None),
        (Stage.HAND_OVER, 10.0, 13.0, None),
        (Stage.ORDER, 13.0, 15.0, None),
        (Stage.BUILD, 15.0, 20.0, "BuildFailed"),
        (Stage.ORDER, 20.0, 22.0, None),
        (Stage.BUILD, 22.0, 30.0, None),
    ]


def test_unrecorded_staging_ends_with_the_hand_over() -> None:
    assert spans(a_row(State.SCHEDULED), Stage.STAGE) == [(None, 10.0, 13.0, None)]
    assert spans(a_row(State.SCHEDULED, history=()), Stage.STAGE) == [(None, 10.0, 13.0, None)]


def test_a_server_without_a_host_failed_in_handover() -> None:
    buried = msgspec.structs.replace(SERVER, state="error", fault="No valid host was found.", updated_at=14.0)
    action = action_with_events(CREATED, buried, None)
    assert (action.finished_at, action.fault) == (14.0, "No valid host was found.")
    assert [(e.stage, e.error) for e in action.events] == [(Stage.ACCEPT, None), (Stage.HAND_OVER, "BuildFailed")]


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
def test_a_creation_ends_by_guest_fault_or_delete(row: Instance, finished: float | None) -> None:
    action = action_with_events(CREATED, SERVER, row)
    assert (action.finished_at, action.fault, action.request_id) == (finished, row.fault, "req-1")


def test_a_delete_is_over_when_the_instance_is() -> None:
    assert action_with_events(DELETED, SERVER, a_row(State.DELETING)).finished_at is None
    over = action_with_events(DELETED, SERVER, a_row(State.DELETED, terminated_at=60.0))
    assert (over.started_at, over.finished_at) == (50.0, 60.0)
    assert [(e.stage, e.host, e.started_at, e.finished_at) for e in over.events] == [(Stage.DELETE, "h2", 50.0, 60.0)]
    queued = msgspec.structs.replace(SERVER, state="deleted", terminated_at=51.0)
    assert action_with_events(DELETED, queued, None).finished_at == 51.0
