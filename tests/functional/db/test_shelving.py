"""Shelved servers at the API level: each step on its condition, what is charged and claimed, and which snapshots are removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from conductor.tidy import remove_images
from db.api.operations import shelving
from db.api.projects import quotas
from db.api.rows.tables import image_removals as removals
from db.api.rows.tables import request_specs
from db.api.servers import image_removals
from db.audit import quotas as quota_audit
from db.audit import snapshot
from db.sql.engine import Database
from images.store import FolderStore
from objects import errors
from objects.feed import EventKind
from objects.group import GroupPolicy
from objects.operation import Operation, OperationKind, OperationState, Outcome
from objects.quota import OwnLimits, QuotaLimits
from objects.task import Power, TaskState
from tests.support import fleet
from tests.support.conductor import NOW, Queue
from tests.support.moves import Moves


@pytest.fixture(params=["of projects", "of users"])
def moves(database: Database, request: pytest.FixtureRequest) -> Iterator[Moves]:
    """Both usages that are recorded are compared at the end of each test."""
    made = Moves(Queue(database))
    if request.param == "of users":
        database.write(quotas.change_user, "p", "u", OwnLimits(instances=-1), QuotaLimits())
    database.write(lambda tx: tx.execute(sa.delete(removals)))
    yield made
    assert database.read(quota_audit.list_differences) == []


def tell(moves: Moves, body: str, number: int, state: TaskState, power: Power = Power.HELD) -> None:
    moves.tell(body, EventKind.TASK, power=power, task_number=number, task_state=state)


def saved(moves: Moves, server: str) -> Operation:
    """The snapshot is complete."""
    operation = moves.accept(server, OperationKind.SHELVE)
    tell(moves, operation.source_uuid or "", operation.number, TaskState.DONE)
    moves.step("finish_tasks", operation)
    assert moves.state(operation) == (OperationState.SHELVED, None)
    return operation


def offload(moves: Moves, operation: Operation) -> bool:
    return bool(moves.queue.ledger.write(shelving.offload_servers, [operation.uuid], NOW).operations)


def shelved(moves: Moves, server: str) -> Operation:
    """The server is on no host, and its old body is gone."""
    operation = saved(moves, server)
    assert offload(moves, operation)
    moves.tell_gone(operation.source_uuid or "")
    return operation


def due(moves: Moves) -> list[str]:
    return list(moves.database.read(image_removals.list_due, 100))


def test_a_server_offloads_after_its_complete_snapshot(moves: Moves) -> None:
    server = moves.active()
    before = moves.used()
    operation = moves.accept(server, OperationKind.SHELVE)
    for state in (TaskState.ORDERED, TaskState.RUNNING):
        tell(moves, server, operation.number, state)
        moves.step("finish_tasks", operation)
        assert (moves.state(operation), offload(moves, operation)) == ((OperationState.TASK, None), False)
    tell(moves, server, operation.number, TaskState.DONE)
    assert not offload(moves, operation), "a sweep reads it first"
    moves.step("finish_tasks", operation)
    assert offload(moves, operation)
    assert not offload(moves, operation)
    found = moves.server(server)
    assert (found.state, found.host, found.cell_uuid, found.turn) == ("shelved", None, None, 1)
    assert moves.shown(server) == [found.body_uuid]
    assert moves.body(server).server.deleted
    assert moves.used() == before
    assert moves.state(operation) == (OperationState.ENDED, Outcome.DONE)
    assert due(moves) == []


def test_a_restarted_guest_is_not_offloaded(moves: Moves) -> None:
    server = moves.active()
    operation = saved(moves, server)
    tell(moves, server, operation.number + 3, TaskState.ORDERED, Power.ON)
    assert not offload(moves, operation)


def test_a_server_with_unreadable_request_stays_in_place(moves: Moves) -> None:
    server = moves.active()
    operation = saved(moves, server)
    batch = moves.server(server).batch_id
    text = moves.database.read(
        lambda tx: tx.execute(sa.select(request_specs.c.spec).where(request_specs.c.batch_id == batch)).scalar()
    )
    spec = sa.update(request_specs).where(request_specs.c.batch_id == batch)
    moves.database.write(lambda tx: tx.execute(spec.values(spec="{}")))
    with pytest.raises(errors.Conflict, match="its request cannot be read"):
        offload(moves, operation)
    moves.database.write(lambda tx: tx.execute(spec.values(spec=text)))
    assert offload(moves, operation)


def test_a_failed_snapshot_does_not_change_the_server(moves: Moves) -> None:
    server = moves.active()
    operation = moves.accept(server, OperationKind.SHELVE)
    moves.tell(
        server,
        EventKind.TASK,
        power=Power.HELD,
        task_number=operation.number,
        task_state=TaskState.FAILED,
        task_fault="The disk is full.",
    )
    moves.step("finish_tasks", operation)
    assert moves.state(operation) == (OperationState.STARTING, None)
    tell(moves, server, operation.number + 3, TaskState.ORDERED, Power.ON)
    moves.step("finish_tasks", operation)
    assert moves.state(operation) == (OperationState.ENDED, Outcome.GIVEN_UP)
    assert due(moves) == [], "the host may still be at the snapshot"
    tell(moves, server, operation.number + 3, TaskState.DONE, Power.ON)
    assert due(moves) == [operation.uuid]


def test_a_shelved_server_returns_by_its_groups_policy(moves: Moves) -> None:
    group = fleet.group(GroupPolicy.ANTI_AFFINITY)
    one, other = (moves.active(group=group) for _ in range(2))
    shelved(moves, one)
    assert {slot.instance_uuid for slot in moves.database.read(snapshot.list_slots)} == {other}
    unshelve = moves.accept(one, OperationKind.UNSHELVE)
    assert moves.placed(unshelve).host != moves.body(other).server.host


def test_an_unshelved_servers_snapshot_leaves_the_retained_list(moves: Moves) -> None:
    server = moves.active()
    before = moves.used()
    shelve = shelved(moves, server)
    unshelve = moves.accept(server, OperationKind.UNSHELVE)
    item = moves.placed(unshelve)
    assert moves.hold(item)
    assert moves.hand_over(item)
    assert due(moves) == []
    moves.tell(unshelve.twin_uuid or "", EventKind.ACTIVE)
    moves.switch(unshelve)
    found = moves.server(server)
    assert (found.state, found.body_uuid, found.power) == ("active", unshelve.twin_uuid, Power.ON)
    assert moves.body(unshelve.source_uuid or "").server.state == "deleted"
    assert (moves.used(), due(moves)) == (before, [shelve.uuid])


def test_a_cancelled_unshelve_keeps_the_snapshot(moves: Moves) -> None:
    server = moves.active()
    shelved(moves, server)
    unshelve = moves.accept(server, OperationKind.UNSHELVE)
    moves.give_up(unshelve, "No valid host was found.")
    moves.step("given_up", unshelve)
    assert moves.state(unshelve) == (OperationState.ENDED, Outcome.GIVEN_UP)
    assert (moves.server(server).state, due(moves)) == ("shelved", [])
    moves.accept(server, OperationKind.UNSHELVE)


def test_the_snapshot_of_a_deleted_server_is_removed(moves: Moves) -> None:
    servers = [moves.active() for _ in range(2)]
    shelve = shelved(moves, servers[0])
    assert moves.queue.delete(servers[0]) is not None
    assert due(moves) == [shelve.uuid]
    under_way = moves.accept(servers[1], OperationKind.SHELVE)
    moves.queue.delete(servers[1])
    assert due(moves) == [shelve.uuid], "its host may still write it"
    moves.tell_gone(servers[1])
    assert due(moves) == sorted([shelve.uuid, under_way.uuid])
    moves.database.write(image_removals.forget_removals, due(moves))
    assert due(moves) == []


def test_an_evacuation_restores_a_server_during_its_shelving(moves: Moves) -> None:
    server = moves.active()
    shelve = moves.accept(server, OperationKind.SHELVE)
    tell(moves, server, shelve.number, TaskState.RUNNING)
    evacuation = moves.accept(server, OperationKind.EVACUATE)
    assert (moves.state(shelve)[1], evacuation.power_before) == (Outcome.GIVEN_UP, Power.ON)
    assert moves.body(evacuation.twin_uuid or "").server.power is Power.ON


@pytest.mark.parametrize("kind", [OperationKind.STOP, OperationKind.SHELVE, OperationKind.EVACUATE, OperationKind.MIGRATE])
def test_a_shelved_server_takes_no_other_operation(moves: Moves, kind: OperationKind) -> None:
    server = moves.active()
    shelved(moves, server)
    with pytest.raises(errors.Conflict, match="while it is in vm_state shelved_offloaded"):
        moves.accept(server, kind)


def test_an_unremovable_snapshot_holds_up_no_other(moves: Moves, tmp_path: Path) -> None:
    """Without a store, or with one that is away, nothing is forgotten."""
    names = ["odd", "one", "two"]
    moves.database.write(image_removals.add_removals, dict.fromkeys(names), NOW)
    store = FolderStore(tmp_path / "images")
    for some in (None, store):
        remove_images(moves.database, some)
        assert due(moves) == names
    for name in ("one", "two", "kept"):
        store.save_snapshot(name, b"snapshot")
    (tmp_path / "images" / "odd").mkdir()
    remove_images(moves.database, store)
    assert due(moves) == ["odd"]
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == ["kept", "odd"]
    (tmp_path / "images" / "odd").rmdir()
    remove_images(moves.database, store)
    assert due(moves) == []
