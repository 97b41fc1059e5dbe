"""What listeners are told of servers that are moved: a server has one uuid, is born once, and dies once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from db import outbox
from db.api.operations import shelving
from db.sql.engine import Database
from objects import payload
from objects.flavor import Flavor
from objects.notification import EventType
from objects.operation import OperationKind
from tests.support.conductor import FAR, NOW, Queue
from tests.support.ground import GROUNDS, Ground
from tests.support.moves import Moves

LARGE = Flavor(flavor_id="large", name="large", vcpus=4, memory_mb=4096, root_gb=10)


@pytest.fixture(params=GROUNDS)
def database(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    place = Ground(request.param, tmp_path)
    database = Database(place.database("api"), name="api", outbox=True)
    yield database
    place.end(database.dispose_connections, place.release)


def told(database: Database) -> list[tuple[str, str, str | None]]:
    """Event, server and host of what was not told before, as the documents have them, without the scheduler's."""
    notices = [each.notice for each in database.write(outbox.take_notices, "api", NOW, NOW, 1000)]
    database.write(lambda tx: outbox.drop_notices(tx, "api", FAR))
    subjects = database.read(outbox.subjects_of, "api", notices)
    found = []
    for notice in notices:
        if notice.event_type.startswith("instance."):
            document = payload.make_message(notice, subjects[notice.subject], "here")
            data = document["payload"]["nova_object.data"]
            found.append((document["event_type"], data["uuid"], data["host"]))
    return found


def test_a_move_notifies_an_update_bodies_nothing(database: Database) -> None:
    moves = Moves(Queue(database))
    server = moves.active()
    assert told(database) == [(EventType.UPDATE, server, moves.body(server).server.host)]
    operation = moves.moved(server)
    assert told(database) == []
    moves.switch(operation)
    host = moves.server(server).host
    assert told(database) == [(EventType.UPDATE, server, host)]
    moves.queue.delete(server)
    assert told(database) == [(EventType.DELETE_START, server, host), (EventType.DELETE_END, server, host)]


def test_a_shelved_server_reports_leaving_and_one_delete(database: Database) -> None:
    moves = Moves(Queue(database))
    server = moves.active()
    told(database)
    shelve = moves.accept(server, OperationKind.SHELVE)
    moves.tell_held(server, shelve.number)
    moves.step("finish_tasks", shelve)
    assert told(database) == []
    moves.queue.ledger.write(shelving.offload_servers, [shelve.uuid], NOW)
    moves.tell_gone(server)
    assert told(database) == [(EventType.UPDATE, server, None)]
    moves.queue.delete(server)
    assert told(database) == [(EventType.DELETE_START, server, None), (EventType.DELETE_END, server, None)]


def test_a_resized_server_reports_its_size_and_host(database: Database) -> None:
    moves = Moves(Queue(database))
    server = moves.active()
    before = moves.server(server).host
    operation = moves.moved(server, OperationKind.RESIZE, flavor=LARGE)
    moves.switch(operation)
    subject = database.read(
        outbox.subjects_of, "api", [each.notice for each in database.write(outbox.take_notices, "api", NOW, NOW, 1000)]
    )
    spec = subject[server].spec
    assert spec is not None
    assert spec.flavor == LARGE
    told(database)
    moves.step("revert_moves", operation)
    moves.tell_held(operation.twin_uuid or "", operation.number + 2)
    moves.step("point_back", operation, (), charges=True)
    assert told(database) == [(EventType.UPDATE, server, before)]


def test_a_move_request_names_the_server_it_moves(database: Database) -> None:
    moves = Moves(Queue(database))
    server = moves.active()
    operation = moves.migrate(server)
    batch = moves.body(operation.twin_uuid or "").server.batch_id
    database.write(lambda tx: outbox.drop_notices(tx, "api", FAR))
    moves.placed(operation)
    assert database.read(outbox._of_batches, [batch])[batch].server_uuid == server
