"""hand_over, bury and delete decide a request against each other: one wins, whatever the order, on every server that answers."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from db.api.queue.builds import Deleted
from db.api.rows.tables import build_requests
from db.api.servers import mappings
from db.sql.connection import Connection
from objects import errors
from objects.cell import CELL0_UUID
from tests.support.conductor import FAR, NOW, Mapped, Queue
from tests.support.fleet import CELLS
from tests.support.transactions import run_threads

FAULT = "No valid host was found."


def get(queue: Queue, uuid: str) -> Mapped:
    return queue.mapped()[uuid]


def test_hand_over_writes_the_cell_once_retaining_claims(queue: Queue) -> None:
    fences = queue.claimed(2)
    claims = queue.site.claimed()
    first, second = fences
    assert queue.hand_over({first: 1}, CELLS[0], "h0") == [first]
    assert get(queue, first) == Mapped(cell_uuid=CELLS[0], deleted=False, fence=1, seen=0, state="building", host="h0")
    server = queue.database.read(mappings.get, first)
    assert server is not None
    assert (server.node, server.availability_zone, server.updated_at) == ("h0", "zone", NOW)
    assert queue.requests().keys() == {second}
    assert queue.hand_over({first: 1}, CELLS[1], "h1") == []
    assert get(queue, first).cell_uuid == CELLS[0]
    assert queue.site.claimed() == claims


def test_bury_writes_cell0_with_reason_and_frees_claim(queue: Queue) -> None:
    fences = queue.claimed(2)
    first, second = fences
    assert queue.bury({first: 1}, FAULT) == [first]
    assert get(queue, first) == Mapped(cell_uuid=CELL0_UUID, deleted=False, fence=1, seen=0, state="error", host=None)
    server = queue.database.read(mappings.get, first)
    assert server is not None
    assert server.fault == FAULT
    assert queue.site.claimed().keys() == queue.requests().keys() == {second}
    assert queue.site.overfull() == []
    assert queue.bury({}) == []


def test_delete_of_a_queued_request_leaves_nothing(queue: Queue) -> None:
    fences = queue.claimed(2)
    first, second = fences
    assert queue.delete(first) == Deleted(cell_uuid=None)
    assert get(queue, first) == Mapped(cell_uuid=None, deleted=True, fence=0, seen=0, state="deleted", host=None)
    server = queue.database.read(mappings.get, first)
    assert server is not None
    assert server.terminated_at == NOW
    assert queue.site.claimed().keys() == queue.requests().keys() == {second}
    assert queue.site.overfull() == []


def test_delete_after_hand_over_only_marks_it(queue: Queue) -> None:
    """The claim stays until the cell has said that nothing is there any more."""
    [uuid] = fences = queue.claimed()
    queue.hand_over(fences)
    assert queue.delete(uuid) == Deleted(cell_uuid=CELLS[0], bodies=(uuid,))
    assert get(queue, uuid) == Mapped(cell_uuid=CELLS[0], deleted=True, fence=1, seen=0, state="building", host="h0")
    assert queue.site.claimed().keys() == {uuid}


def test_delete_of_what_was_buried_goes_to_cell0(queue: Queue) -> None:
    [uuid] = fences = queue.claimed()
    queue.bury(fences)
    assert queue.delete(uuid) == Deleted(cell_uuid=CELL0_UUID, bodies=(uuid,))
    assert get(queue, uuid).deleted
    assert queue.site.overfull() == []


@pytest.mark.parametrize("project_id", [None, "p"])
def test_unknown_foreign_or_deleted_requests_cannot_be_deleted(queue: Queue, project_id: str | None) -> None:
    uuid, handed = queue.claimed(2)
    queue.hand_over({handed: 1})
    assert queue.delete("unknown", project_id) is None
    before = queue.requests(), queue.mapped(), queue.site.claimed()
    assert queue.delete(uuid, "another") is None
    assert queue.delete(handed, "another") is None
    assert (queue.requests(), queue.mapped(), queue.site.claimed()) == before
    assert queue.delete(uuid, project_id) == Deleted(cell_uuid=None)
    assert queue.delete(handed, project_id) == Deleted(cell_uuid=CELLS[0], bodies=(handed,))
    after = queue.mapped()
    assert queue.delete(uuid, project_id, now=NOW + 9.0) is None
    assert queue.delete(handed, project_id, now=NOW + 9.0) is None
    assert queue.mapped() == after


@pytest.mark.parametrize("second", ["hand_over", "bury"])
@pytest.mark.parametrize("first", ["hand_over", "bury", "delete"])
def test_whoever_comes_second_loses_and_touches_nothing(queue: Queue, first: str, second: str) -> None:
    [uuid] = fences = queue.claimed()
    moves: dict[str, Callable[[], object]] = {
        "hand_over": lambda: queue.hand_over(fences, CELLS[1], "h1"),
        "bury": lambda: queue.bury(fences),
        "delete": lambda: queue.delete(uuid),
    }
    assert moves[first]()
    before = queue.mapped(), queue.site.claimed()
    assert moves[second]() == []
    assert (queue.mapped(), queue.site.claimed()) == before


@pytest.mark.parametrize("move", ["hand_over", "bury"])
def test_who_was_overtaken_loses_and_touches_nothing(queue: Queue, move: str) -> None:
    """Under every fence but the one in force; and a request that nobody drives cannot be handed over either."""
    spec = queue.accept()
    [uuid] = old = queue.lease(spec.batch_id)
    new = queue.lease(spec.batch_id, owner="two", now=FAR)
    [queued] = queue.requests().keys() - old.keys() or [uuid]
    for fences in (old, {uuid: 3}, {queued: 0}):
        won = queue.hand_over(fences) if move == "hand_over" else queue.bury(fences)
        assert won == []
    assert queue.requests()[uuid].fence == 2
    assert get(queue, uuid).cell_uuid is None
    assert (queue.hand_over(new) if move == "hand_over" else queue.bury(new)) == [uuid]


def test_of_a_batch_requests_are_decided_individually(queue: Queue) -> None:
    fences = queue.claimed(4)
    deleted, overtaken, *rest = fences
    queue.delete(deleted)
    queue.site.database.write(_raise_fence, overtaken)
    assert queue.hand_over(fences) == rest
    assert queue.requests().keys() == {overtaken}
    assert {uuid for uuid, mapped in queue.mapped().items() if mapped.cell_uuid} == set(rest)


def test_requests_under_different_fences_are_decided_together(queue: Queue) -> None:
    spec = queue.accept(4)
    first, second, third, fourth = fences = queue.lease(spec.batch_id)
    queue.database.write(_raise_fence, second)
    queue.database.write(_raise_fence, fourth)
    fences |= {second: 2, fourth: 2}
    assert queue.hand_over({first: 1, second: 2}) == [first, second]
    assert queue.bury({third: 1, fourth: 2}) == [third, fourth]
    assert {uuid: mapped.fence for uuid, mapped in queue.mapped().items()} == fences


def test_a_mapping_decided_beside_its_request_stays(queue: Queue) -> None:
    """It cannot come to that (S6); if it did, the hand-over would undo itself."""
    [uuid] = fences = queue.leased()
    queue.hand_over(fences)
    queue.database.write(_put_back, uuid)
    with pytest.raises(errors.Conflict):
        queue.hand_over(fences, CELLS[1], "h1")
    with pytest.raises(errors.Conflict):
        queue.bury(fences)
    assert uuid in queue.requests()
    assert get(queue, uuid).cell_uuid == CELLS[0]


@pytest.mark.parametrize("spread", ["together", "one by one"])
def test_of_concurrent_hand_over_burial_delete_one_decides(queue: Queue, spread: str) -> None:
    """Every mapping is written once and every claim is freed once, or not at all."""
    fences = queue.claimed(24)
    parts = [fences] if spread == "together" else [{uuid: fence} for uuid, fence in fences.items()]
    handed: list[str] = []
    buried: list[str] = []
    deleted: dict[str, Deleted | None] = {}
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait(20)
        for part in parts if number else [{uuid: 1} for uuid in fences]:
            if number == 0:
                [uuid] = part
                deleted[uuid] = queue.delete(uuid)
            elif number == 1:
                buried.extend(queue.bury(part))
            else:
                handed.extend(queue.hand_over(part, CELLS[number - 2], f"h{number}"))

    assert run_threads(4, work) == []
    assert queue.requests() == {}
    vanished = [uuid for uuid, answer in deleted.items() if answer == Deleted(cell_uuid=None)]
    assert sorted([*handed, *buried, *vanished]) == sorted(fences)
    assert None not in deleted.values()
    for uuid, mapped in queue.mapped().items():
        assert mapped.deleted
        assert deleted[uuid] == Deleted(cell_uuid=mapped.cell_uuid, bodies=(uuid,) if mapped.cell_uuid else ())
        assert (uuid in handed, uuid in buried) == (mapped.cell_uuid in CELLS, mapped.cell_uuid == CELL0_UUID)
    assert queue.site.claimed().keys() == set(handed)
    assert queue.site.overfull() == []


def test_of_two_concurrent_deletes_one_wins(queue: Queue) -> None:
    fences = queue.claimed(12)
    queue.hand_over(dict(list(fences.items())[:6]))
    won: list[str] = []

    def work(_: int) -> None:
        won.extend(uuid for uuid in fences if queue.delete(uuid) is not None)

    assert run_threads(3, work) == []
    assert sorted(won) == sorted(fences)
    assert queue.site.overfull() == []


def _raise_fence(tx: Connection, uuid: str) -> None:
    tx.execute(sa.update(build_requests).where(build_requests.c.instance_uuid == uuid).values(fence=build_requests.c.fence + 1))


def _put_back(tx: Connection, uuid: str) -> None:
    row = {
        "instance_uuid": uuid,
        "batch_id": "b",
        "state": "leased",
        "lease_until": 0.0,
        "fence": 1,
        "deadline": FAR,
        "priority": 0,
    }
    tx.execute(sa.insert(build_requests), row | {"created_at": NOW})
