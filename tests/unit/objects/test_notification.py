"""Which facts a change of a row tells: every start has one end or error, whatever becomes of the server."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from objects import lifecycle, notification, payload
from objects.decision import DecidedInstance, Decision
from objects.flavor import Flavor
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Change, Outcome
from objects.notification import EventType, Notice
from objects.payload import Subject
from objects.selection import Selection
from objects.spec import RequestSpec, ServerProperties
from objects.task import Power

HOSTS = ("h1", "h2", "h3")
STAGED = Instance(
    uuid="11111111-1111-4111-8111-111111111111",
    state=State.STAGED,
    fence=1,
    host="h1",
    node="h1",
    alternates=tuple(Selection(host=host, node=host, cell_uuid="c") for host in HOSTS[1:]),
)


def moves(row: Instance, now: float) -> Iterator[Outcome]:
    """All that may happen to a row."""
    host, fence, attempt, builder = row.host or "", row.fence, row.attempt, row.builder or "b"
    yield lifecycle.accept_order(row, host, fence, attempt, "b")
    yield lifecycle.confirm_active(row, host, fence, attempt, builder, now)
    for kind in (FailureClass.HOST, FailureClass.REQUEST, FailureClass.RESTARTED):
        failure = Failure(kind=kind, error="BuildFailed", message="boom", at=now)
        yield lifecycle.fail_attempt(row, host, fence, attempt, builder, failure)
    failure = Failure(kind=FailureClass.DEADLINE, error="BuildTimeout", message="late", at=now)
    yield lifecycle.end_overdue(row, attempt, failure)
    yield lifecycle.host_dead(row, attempt, failure)
    yield lifecycle.host_stopping(row, attempt, msgspec.structs.replace(failure, kind=FailureClass.STOPPING))
    yield lifecycle.roll_back(row, "another one failed")
    yield lifecycle.delete(row, now)
    yield lifecycle.confirm_gone(row, host, attempt, now)


def a_life(seed: int) -> tuple[list[Notice], Instance]:
    """One way from STAGED to the end, by chance."""
    chance, row, told = random.Random(seed), STAGED, []
    for step in range(60):
        now = float(step)
        possible = [outcome.row for outcome in moves(row, now) if isinstance(outcome, Change)]
        if not possible:
            break
        new = chance.choice(possible)
        told += notification.of_change(row, new, now)
        row = new
    return told, row


def test_every_start_has_one_end_or_error() -> None:
    """In any life: as many starts as ends of each kind, never two at once, and no id twice."""
    seen: Counter[EventType] = Counter()
    for seed in range(500):
        told, row = a_life(seed)
        assert row.state is State.DELETED
        assert len({notice.message_id for notice in told}) == len(told)
        open_: set[str] = set()
        for notice in told:
            seen[notice.event_type] += 1
            what, _, phase = notice.event_type.rpartition(".")
            if what == "compute_task.build_instances":
                continue
            if phase == "start":
                assert what not in open_, told
                open_.add(what)
            else:
                assert what in open_, told
                open_.remove(what)
        assert not open_, told
    assert set(seen) == {
        *(EventType.CREATE_START, EventType.CREATE_END, EventType.CREATE_ERROR),
        *(EventType.DELETE_START, EventType.DELETE_END, EventType.BUILD_ERROR),
    }


def test_a_delete_without_a_row_begins_and_ends() -> None:
    tombstone = lifecycle.make_tombstone(STAGED.uuid, 1.0).row
    told = notification.of_change(None, tombstone, 1.0)
    assert [notice.event_type for notice in told] == [EventType.DELETE_START, EventType.DELETE_END]


def test_moved_bodies_are_not_reported_created_or_deleted() -> None:
    """Neither the one that a move builds, nor the one that it leaves, which is held."""
    later = msgspec.structs.replace(STAGED, turn=1, server_uuid="22222222-2222-4222-8222-222222222222")
    held = msgspec.structs.replace(STAGED, state=State.ACTIVE, power=Power.HELD)
    for row in (later, msgspec.structs.replace(later, state=State.ACTIVE), held):
        told = [outcome.row for outcome in moves(row, 1.0) if isinstance(outcome, Change)]
        assert told
        assert [notice for new in told for notice in notification.of_change(row, new, 1.0)] == []


def test_a_row_told_again_is_no_news() -> None:
    active = msgspec.structs.replace(STAGED, state=State.ACTIVE, version=3)
    assert notification.of_change(active, msgspec.structs.replace(active, version=9), 1.0) == []


@pytest.mark.parametrize(("refusal", "end"), [("", EventType.SELECT_END), ("No valid host.", EventType.SELECT_ERROR)])
def test_a_scheduler_call_ends_with_its_decision(refusal: str, end: EventType) -> None:
    choices = (DecidedInstance(instance_uuid="a", host="h1"), DecidedInstance(instance_uuid="b", host="h2"))
    made = Decision(
        id="d", batch_id="b", request_id="r", at=10.0, driver="filter", hosts=2, choices=choices, message=refusal, elapsed_ms=500.0
    )
    first, last = notification.of_decision(made)
    assert (first.event_type, first.at, first.facts.instance_uuids) == (EventType.SELECT_START, 9.5, ("a", "b"))
    assert (last.event_type, last.at, last.facts.message) == (end, 10.0, refusal or None)


def test_a_move_call_names_the_server_not_twins() -> None:
    choices = (DecidedInstance(instance_uuid="twin", host="h1"),)
    made = Decision(id="d", batch_id="b", request_id="r", at=10.0, driver="filter", hosts=2, choices=choices)
    small = Flavor(flavor_id="1", name="small", vcpus=1, memory_mb=1)
    spec = RequestSpec(batch_id="b", request_id="r", project_id="p", user_id="u", name="web", flavor=small)
    subject = Subject(batch_id="b", spec=spec, server_uuid="server")
    for notice in notification.of_decision(made):
        document = payload.make_message(notice, subject, "here")
        assert document["payload"]["nova_object.data"]["instance_uuids"] == ["server"]


def test_a_document_has_named_fields_and_no_secret() -> None:
    """Metadata stays out too: tenants keep secrets in it."""
    spec = RequestSpec(
        batch_id="22222222-2222-4222-8222-222222222222",
        request_id="req-1",
        project_id="p",
        user_id="u",
        name="web",
        flavor=Flavor(flavor_id="1", name="small", vcpus=1, memory_mb=512),
        properties=ServerProperties(metadata={"password": "hush"}, key_name="hush-key"),
        has_secrets=True,
    )
    subject = Subject(name="web-1", project_id="p", user_id="u", batch_id=spec.batch_id, created_at=0.0, spec=spec)
    accepted = lifecycle.accept_order(STAGED, "h1", 1, 1, "b")
    assert isinstance(accepted, Change)
    [start] = notification.of_change(STAGED, accepted.row, 1.0)
    told = payload.make_message(start, subject, "here")
    assert (told["event_type"], told["priority"]) == ("instance.create.start", "INFO")
    assert told["publisher_id"] == "superconductor-compute:h1"
    document = told["payload"]
    assert (document["nova_object.name"], document["nova_object.namespace"]) == ("InstanceCreatePayload", "superconductor")
    data = document["nova_object.data"]
    assert (data["uuid"], data["display_name"], data["tenant_id"], data["host"]) == (STAGED.uuid, "web-1", "p", "h1")
    assert data["flavor"]["nova_object.data"]["name"] == "small"
    assert payload.make_context(subject)["request_id"] == "req-1"
    for event in EventType:
        text = str(payload.make_message(msgspec.structs.replace(start, event_type=event), subject, "here"))
        assert "hush" not in text
