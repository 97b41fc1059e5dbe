"""Images of servers at the API level: who sees one, which backups go, and what is left of an operation that does not end well."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from db.api.rows.tables import image_removals as removals
from db.api.rows.tables import server_images as table
from db.api.servers import image_removals, server_images
from db.sql.engine import Database
from objects.feed import EventKind
from objects.operation import Operation, OperationArgs, OperationKind, OperationState, Outcome
from objects.task import NewImage, Power, TaskState
from tests.support.conductor import NOW, Queue
from tests.support.moves import Moves

PROJECT = "owner"


@pytest.fixture
def moves(database: Database) -> Moves:
    database.write(lambda tx: tx.execute(sa.delete(removals)))
    database.write(lambda tx: tx.execute(sa.delete(table)))
    return Moves(Queue(database))


def ask(moves: Moves, server: str, backup_type: str = "", rotation: int = 0) -> Operation:
    image = NewImage(name="one", owner=PROJECT, backup_type=backup_type, rotation=rotation)
    kind = OperationKind.CREATE_BACKUP if backup_type else OperationKind.CREATE_IMAGE
    return moves.accept(server, kind, args=OperationArgs(image=image))


def tell(moves: Moves, operation: Operation, state: TaskState = TaskState.DONE, number: int = 0) -> None:
    body, power = operation.source_uuid or "", operation.power_before
    fault = "no room" if state is TaskState.FAILED else None
    moves.tell(body, EventKind.TASK, power=power, task_number=operation.number + number, task_state=state, task_fault=fault)
    moves.step("finish_tasks", operation)


def seen(moves: Moves) -> dict[str, bool]:
    """Whether each image is complete."""
    return {row.image_id: bool(row.complete) for row in moves.database.read(lambda tx: tx.execute(sa.select(table)).all())}


def due(moves: Moves) -> list[str]:
    return list(moves.database.read(image_removals.list_due, 100))


def test_an_image_is_complete_after_its_cells_report(moves: Moves) -> None:
    server = moves.active()
    operation = ask(moves, server)
    assert seen(moves) == {operation.uuid: False}
    moves.step("finish_tasks", operation)
    assert seen(moves) == {operation.uuid: False}
    tell(moves, operation)
    assert moves.state(operation) == (OperationState.ENDED, Outcome.DONE)
    assert (seen(moves), due(moves)) == ({operation.uuid: True}, [])
    moves.queue.delete(server)
    assert seen(moves) == {operation.uuid: True}, "it outlives its server"


def test_a_failed_image_does_not_change_the_server(moves: Moves) -> None:
    server = moves.active()
    operation = ask(moves, server)
    tell(moves, operation, TaskState.FAILED)
    assert moves.state(operation) == (OperationState.STARTING, None)
    assert due(moves) == []
    tell(moves, operation, number=3)
    assert moves.state(operation) == (OperationState.ENDED, Outcome.GIVEN_UP)
    assert (seen(moves), due(moves)) == ({}, [operation.uuid])
    assert (moves.server(server).power, moves.server(server).task_state) == (Power.ON, TaskState.DONE)


def test_images_a_host_may_write_are_removed_later(moves: Moves) -> None:
    late, deleted = moves.active(), moves.active()
    first, second = ask(moves, late), ask(moves, deleted)
    moves.step("time_out", first)
    tell(moves, first, TaskState.ORDERED, number=3)
    moves.queue.delete(deleted)
    assert (seen(moves), due(moves)) == ({}, [])
    moves.tell(late, EventKind.TASK, power=Power.ON, task_number=first.number + 3, task_state=TaskState.DONE)
    moves.tell_gone(deleted)
    assert due(moves) == sorted([first.uuid, second.uuid])


def test_backups_of_a_type_rotate_per_server(moves: Moves) -> None:
    server, other = moves.active(), moves.active()
    kept = []
    for backup_type in ("weekly", ""):
        kept.append(ask(moves, server, backup_type, 1))
        tell(moves, kept[-1])
    kept.append(ask(moves, other, "daily", 1))
    tell(moves, kept[-1])
    daily = []
    for number in range(3):
        daily.append(ask(moves, server, "daily", 2))
        asked_at(moves, daily[-1], NOW + number)
        tell(moves, daily[-1])
    assert set(seen(moves)) == {each.uuid for each in (*kept, *daily[1:])}
    assert due(moves) == [daily[0].uuid]
    none = ask(moves, server, "daily", 0)
    asked_at(moves, none, NOW + 9)
    tell(moves, none)
    assert set(seen(moves)) == {each.uuid for each in kept}
    assert due(moves) == sorted(each.uuid for each in (*daily, none))


def asked_at(moves: Moves, operation: Operation, at: float) -> None:
    update = sa.update(table).where(table.c.image_id == operation.uuid).values(created_at=at)
    moves.database.write(lambda tx: tx.execute(update))


def test_a_user_deletes_images(moves: Moves) -> None:
    server = moves.active()
    first = ask(moves, server)
    tell(moves, first)
    second = ask(moves, server)
    project = moves.server(server).project_id
    for image in (first, second):
        assert not moves.database.write(server_images.delete, image.uuid, "another", NOW)
        assert moves.database.write(server_images.delete, image.uuid, project, NOW)
        assert not moves.database.write(server_images.delete, image.uuid, project, NOW)
    assert (seen(moves), due(moves)) == ({}, [first.uuid])
    tell(moves, second)
    assert moves.state(second) == (OperationState.ENDED, Outcome.DONE)
    assert (seen(moves), due(moves)) == ({}, sorted([first.uuid, second.uuid]))
