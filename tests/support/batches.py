"""All-or-nothing batches for tests: what befalls their members, and what becomes of the whole."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from compute.driver import Guest
from compute.journal import Journal
from compute.simulated import journal_path
from db.api.queue import batches
from db.api.queue.batches import AllOrNothingBatch
from db.cell import feed, instances
from objects import lifecycle
from objects.feed import EventKind
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Change
from objects.spec import RequestSpec
from service.periodic import wait_until
from tests.support.conductor_process import Conductor, Drive
from tests.support.world import PATIENCE, World

NO_IMAGE = Failure(kind=FailureClass.REQUEST, error="ImageNotFound", message="there is no such image", at=1.0)


def whole(cloud: World, count: int = 4, **asked: Any) -> RequestSpec:
    """Accepted, and nobody was told of it."""
    return cloud.accept(count, all_or_nothing=True, **asked)


def change(cloud: World, uuid: str, decide: Any) -> Instance:
    """One transition of its row, in its cell; the row after it."""
    for name, row in cloud.rows(uuid).items():
        if name != "cell0":
            outcome = cloud.databases[name].write(instances.transition_rows, [row.uuid], decide, time.time())[uuid]
            assert isinstance(outcome, Change), outcome
            return outcome.row
    raise AssertionError(f"no cell has a row of {uuid}")


def fail(cloud: World, uuid: str) -> Instance:
    """No host can build it: ERROR."""
    return change(cloud, uuid, lambda r: lifecycle.fail_attempt(r, r.host, r.fence, r.attempt, r.builder or "", NO_IMAGE))


def accepted(cloud: World, uuid: str) -> Instance:
    """An agent that is gone by now has begun: BUILDING."""
    return change(cloud, uuid, lambda r: lifecycle.accept_order(r, r.host, r.fence, r.attempt, "gone"))


def activated(cloud: World, uuid: str) -> Instance:
    """And it had reported its guest, which is there: ACTIVE."""
    accepted(cloud, uuid)
    row = change(cloud, uuid, lambda r: lifecycle.confirm_active(r, r.host, r.fence, r.attempt, "gone", 1.0))
    leave_guest(cloud, row)
    return row


def rescheduled(cloud: World, uuid: str) -> Instance:
    """Its first host has failed, and the order to the next is lost: SCHEDULED."""
    failure = Failure(kind=FailureClass.HOST, error="BuildFailed", message="no disk", at=1.0)
    row = change(cloud, uuid, lambda r: lifecycle.fail_attempt(r, r.host, r.fence, r.attempt, "", failure))
    assert row.state is State.SCHEDULED
    return row


def leave_guest(cloud: World, row: Instance) -> None:
    """The guest of this row's attempt is on its host, from before the host died."""
    journal = Journal(journal_path(str(cloud.folder.path / "hosts"), row.host or ""))
    names: dict[str, Any] = {"uuid": row.uuid, "name": "g", "node": row.node or "", "builder": "gone", "batch_id": "b"}
    journal.add_guest(Guest(fence=row.fence, attempt=row.attempt, vcpus=1, memory_mb=1024, disk_gb=10, **names))
    journal.close()


def mixed(cloud: World, conductor: Conductor) -> Drive:
    """A batch of which each member is in another state: STAGED, SCHEDULED, BUILDING, ACTIVE, and one that may fail."""
    driven = conductor.drive(whole(cloud, 5), upto="handed over")
    _, scheduled, building, active, _ = driven.uuids
    rescheduled(cloud, scheduled)
    accepted(cloud, building)
    activated(cloud, active)
    return driven


def open_batches(cloud: World) -> list[AllOrNothingBatch]:
    """Those that have a row."""
    return cloud.api.read(batches.list_after, 1000)


def ends(cloud: World, uuids: Iterable[str]) -> dict[str, int]:
    """How often each cell's feed has told of the end of these."""
    told = Counter[str]()
    for name in cloud.cells:
        page = cloud.databases[name].read(feed.read, 0, 10_000)
        told.update(event.key for event in page.events if event.kind is EventKind.ENDED)
    return {uuid: told[uuid] for uuid in uuids}


def assert_rolled_back(cloud: World, culprit: str, others: Sequence[str]) -> None:
    """At rest: all in ERROR, the others for the one that failed; nothing stands and nothing is claimed or undecided."""
    wait_decided(cloud)
    cloud.settle()
    faults = {uuid: cloud.row(uuid).fault or "" for uuid in others}
    assert {cloud.row(uuid).state for uuid in (culprit, *others)} == {State.ERROR}
    why = cloud.row(culprit).fault
    for fault in faults.values():
        assert fault.startswith("Rolled back: server server-")
        assert f"({culprit}) of its all-or-nothing batch failed: {why}" in fault
    listed = {server.uuid: (server.state, server.fault) for server in cloud.evidence().servers}
    assert {uuid: listed[uuid] for uuid in others} == {uuid: ("error", faults[uuid]) for uuid in others}
    assert cloud.evidence().claims.keys().isdisjoint((culprit, *others))


def wait_decided(cloud: World) -> None:
    """Until no batch has a row any more."""
    assert wait_until(lambda: not open_batches(cloud), PATIENCE), open_batches(cloud)
