"""What sweeps read of the API database: the depth of the queue, what was decided, and what a cell still owes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from db.api import mappings
from db.api.mappings import MappingState
from db.api.tables import build_requests, instance_mappings
from db.sql.connection import Connection
from db.sql.engine import Database
from objects.cell import CELL0_UUID
from tests.support.conductor import NOW, Queue
from tests.support.databases import SERVERS, database_on
from tests.support.fleet import CELLS


@pytest.fixture(scope="module", params=SERVERS)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with database_on(request.param, tmp_path_factory.mktemp("queue"), "api") as made:
        yield made


@pytest.fixture
def queue(database: Database) -> Queue:
    return Queue(database)


def test_an_empty_queue_has_no_oldest(queue: Queue) -> None:
    assert queue.database.read(mappings.queue) == mappings.Queue(depth=0, oldest=None)
    queue.accept(2, now=20.0)
    queue.accept(1, now=10.0)
    assert queue.database.read(mappings.queue) == mappings.Queue(depth=3, oldest=10.0)


def test_fates_are_what_was_decided(queue: Queue) -> None:
    spec = queue.accept(6)
    queued, handed, buried, deleted, ended, unmapped = fences = queue.lease(spec.batch_id)
    queue.hand_over({handed: 1, ended: 1}, CELLS[1])
    queue.bury({buried: 1})
    queue.delete(deleted)
    queue.delete(ended)
    queue.database.write(_forget, unmapped)
    undecided = MappingState(cell_uuid=None, deleted=False, fence=0, requested=True)
    assert queue.database.read(mappings.states, [*fences, "unknown"]) == {
        queued: undecided,
        handed: MappingState(cell_uuid=CELLS[1], deleted=False, fence=1, requested=False),
        buried: MappingState(cell_uuid=CELL0_UUID, deleted=False, fence=1, requested=False),
        deleted: MappingState(cell_uuid=None, deleted=True, fence=0, requested=False),
        ended: MappingState(cell_uuid=CELLS[1], deleted=True, fence=1, requested=False),
    }
    assert queue.database.read(mappings.states, []) == {}


def test_deleting_lists_what_a_cell_has_not_confirmed_page_by_page(queue: Queue) -> None:
    spec = queue.accept(9)
    fences = queue.lease(spec.batch_id)
    uuids = sorted(fences)
    queued, live, confirmed = uuids[:3]
    queue.hand_over({uuid: 1 for uuid in uuids if uuid != queued})
    for uuid in uuids:
        if uuid != live:
            queue.delete(uuid)
    queue.database.write(mappings.ended, [confirmed, live], NOW + 5.0)
    owed = uuids[3:]
    first = queue.database.read(mappings.deleting, 4)
    rest = queue.database.read(mappings.deleting, 4, first[-1].uuid)
    assert [server.uuid for server in (*first, *rest)] == owed
    assert queue.database.read(mappings.deleting, 4, owed[-1]) == []
    states = {uuid: mapped.state for uuid, mapped in queue.mapped().items()}
    assert states[confirmed] == "deleted"
    assert states[live] == "building", "only what was deleted can have ended so"


def _forget(tx: Connection, uuid: str) -> None:
    tx.execute(sa.delete(build_requests).where(build_requests.c.instance_uuid == uuid))
    tx.execute(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid == uuid))
