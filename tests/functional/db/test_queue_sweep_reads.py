"""What sweeps read of the API database: the depth of the queue, what was decided, and what a cell still owes."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from db import dead_letters, secrets
from db.api.deployment import silences
from db.api.deployment.silences import Silence
from db.api.queue import batches, due, leases
from db.api.queue.due import SweepsDue
from db.api.rows import epochs
from db.api.rows.epochs import Epoch
from db.api.rows.tables import build_requests, instance_mappings
from db.api.servers import image_removals, mappings
from db.api.servers.mappings import MappingState
from db.sql.connection import Connection
from db.sql.counting import StatementCounter
from objects.cell import CELL0_UUID
from tests.support.conductor import NOW, Queue
from tests.support.fleet import CELLS


def test_an_empty_queue_has_no_oldest(queue: Queue) -> None:
    assert queue.database.read(mappings.measure_queue) == mappings.Queue(depth=0, oldest=None)
    queue.accept(2, now=20.0)
    queue.accept(1, now=10.0)
    assert queue.database.read(mappings.measure_queue) == mappings.Queue(depth=3, oldest=10.0)


def test_fates_are_what_was_decided(queue: Queue) -> None:
    spec = queue.accept(6)
    queued, handed, buried, deleted, ended, unmapped = fences = queue.lease(spec.batch_id)
    queue.hand_over({handed: 1, ended: 1}, CELLS[1])
    queue.bury({buried: 1})
    queue.delete(deleted)
    queue.delete(ended)
    queue.database.write(_forget, unmapped)
    undecided = MappingState(cell_uuid=None, deleted=False, fence=0, requested=True)
    assert queue.database.read(mappings.states_by_uuid, [*fences, "unknown"]) == {
        queued: undecided,
        handed: MappingState(cell_uuid=CELLS[1], deleted=False, fence=1, requested=False),
        buried: MappingState(cell_uuid=CELL0_UUID, deleted=False, fence=1, requested=False),
        deleted: MappingState(cell_uuid=None, deleted=True, fence=0, requested=False),
        ended: MappingState(cell_uuid=CELLS[1], deleted=True, fence=1, requested=False),
    }
    assert queue.database.read(mappings.states_by_uuid, []) == {}


def test_deleting_lists_unconfirmed_deletes_page_by_page(queue: Queue) -> None:
    spec = queue.accept(9)
    fences = queue.lease(spec.batch_id)
    uuids = sorted(fences)
    queued, live, confirmed = uuids[:3]
    queue.hand_over({uuid: 1 for uuid in uuids if uuid != queued})
    for uuid in uuids:
        if uuid != live:
            queue.delete(uuid)
    queue.database.write(mappings.confirm_deletes, [confirmed, live], NOW + 5.0)
    owed = uuids[3:]
    first = queue.database.read(mappings.list_deleting, 4)
    rest = queue.database.read(mappings.list_deleting, 4, first[-1].uuid)
    assert [server.uuid for server in (*first, *rest)] == owed
    assert queue.database.read(mappings.list_deleting, 4, owed[-1]) == []
    states = {uuid: mapped.state for uuid, mapped in queue.mapped().items()}
    assert states[confirmed] == "deleted"
    assert states[live] == "building", "only what was deleted can have ended so"


def _forget(tx: Connection, uuid: str) -> None:
    tx.execute(sa.delete(build_requests).where(build_requests.c.instance_uuid == uuid))
    tx.execute(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid == uuid))


def look(queue: Queue, now: float = NOW, *, resend_age: float = 0.0) -> SweepsDue:
    """And that the reads of the sweeps agree."""
    found = queue.database.read(due.look_for_work, now, 0.0, 10.0, resend_age)
    assert found.waiting == bool(queue.database.read(leases.list_waiting, now, 10, 0.0, 10.0))
    assert found.unconfirmed == bool(queue.database.read(mappings.list_deleting, 10))
    assert found.secrets == bool(queue.database.read(secrets.list_decided))
    assert found.letters == bool(queue.database.read(dead_letters.list_all, "api"))
    assert found.images == bool(queue.database.read(image_removals.list_due, 10))
    assert found.epochs == queue.database.read(epochs.read)
    return msgspec.structs.replace(found, epochs={})


NOTHING_DUE = SweepsDue(**{name: False for name in SweepsDue.__struct_fields__ if name != "epochs"}, epochs={})


def test_one_look_tells_which_sweeps_have_work(queue: Queue) -> None:
    assert look(queue) == NOTHING_DUE
    assert not look(queue).is_open
    spec = queue.accept(1, deadline=NOW + 100.0)
    queued = msgspec.structs.replace(NOTHING_DUE, requests=True, waiting=True)
    assert look(queue) == queued
    assert look(queue, now=NOW + 101.0) == msgspec.structs.replace(queued, overdue=True)
    [uuid] = queue.lease(spec.batch_id)
    driven = msgspec.structs.replace(NOTHING_DUE, requests=True)
    assert look(queue) == driven
    assert driven.is_open
    queue.hand_over({uuid: 1}, CELLS[1])
    building = msgspec.structs.replace(NOTHING_DUE, building=True)
    assert look(queue) == building
    assert building.is_open
    assert queue.database.read(due.busy_cells) == {CELLS[1]}
    queue.delete(uuid)
    unconfirmed = msgspec.structs.replace(NOTHING_DUE, unconfirmed=True, deletes=True)
    assert look(queue, now=1e12) == unconfirmed
    assert look(queue, now=1e12, resend_age=1e12) == msgspec.structs.replace(unconfirmed, deletes=False)
    assert queue.database.read(due.busy_cells) == {CELLS[1]}
    queue.database.write(mappings.confirm_deletes, [uuid], NOW)
    assert look(queue) == NOTHING_DUE
    assert queue.database.read(due.busy_cells) == set()


def test_what_is_only_recorded_is_seen_too(queue: Queue) -> None:
    queue.database.write(silences.begin_silences, [Silence(cell_uuid=CELLS[1], since=NOW, reason="away")])
    queue.database.write(secrets.keep_requests, {"b1": "sealed"}, NOW)
    queue.database.write(batches.begin_batch, "b2", NOW)
    queue.database.write(dead_letters.put_letters, "api", "build", {"u1": "odd"})
    queue.database.write(image_removals.add_removals, {"i1": None}, NOW)
    found = look(queue)
    assert (found.silences, found.secrets, found.batches, found.letters, found.images) == (True,) * 5
    queue.database.write(silences.end_silences, [CELLS[1]])
    queue.database.write(secrets.erase_requests, ["b1"])
    queue.database.write(batches.decide_batches, ["b2"], {}, NOW)
    queue.database.write(dead_letters.remove_letters, "api", "build", ["u1"])
    queue.database.write(image_removals.forget_removals, ["i1"])
    assert look(queue) == NOTHING_DUE


def test_a_look_reads_epochs_in_its_statement(queue: Queue) -> None:
    for kind in (Epoch.HOSTS, Epoch.FEEDS):
        queue.database.write(epochs.bump_epoch, kind)
    queue.accept(1)
    with StatementCounter(queue.database) as counter:
        found = queue.database.read(due.look_for_work, NOW, 0.0, 10.0, 0.0)
    assert sum(count.executions for count in counter.totals_by_database().values()) == 1
    assert found.requests
    assert found.epochs.keys() >= {Epoch.HOSTS, Epoch.FEEDS}
    assert found.epochs == queue.database.read(epochs.read)
