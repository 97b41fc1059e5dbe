"""A conductor extends the leases of what it still drives, and of nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from conductor.lease_renewer import LeaseRenewer
from db.api.queue import leases
from tests.support.conductor import FAR, Queue
from tests.support.databases import database_on

LEASE = 0.4
SLOW = LEASE / 2
"""Longer than a drive may take before its lease is extended."""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with database_on("sqlite", tmp_path, "api") as made:
        yield Queue(made)


@pytest.fixture
def driving(queue: Queue) -> LeaseRenewer:
    return LeaseRenewer(queue.database, LEASE)


def leased(queue: Queue, count: int = 2, deadline: float = FAR) -> leases.LeasedBatch:
    spec = queue.accept(count, deadline=deadline)
    [batch] = queue.database.write(leases.lease_batches, "one", [spec.batch_id], time.time(), LEASE)
    return batch


def untils(queue: Queue) -> dict[str, float]:
    found = {uuid: row.lease_until for uuid, row in queue.requests().items()}
    assert found
    return found


def test_what_takes_long_is_not_taken_over(queue: Queue, driving: LeaseRenewer) -> None:
    batch = leased(queue)
    before = untils(queue)
    with driving.renew_during([batch]):
        driving.renew_leases()
        assert untils(queue) == before, "nothing is written for what is quick"
        time.sleep(SLOW)
        driving.renew_leases()
        assert all(until >= before[uuid] + SLOW for uuid, until in untils(queue).items())
        time.sleep(LEASE - SLOW)  # until the first lease has run out
        assert queue.database.read(leases.list_waiting, time.time(), 10) == []
    after = untils(queue)
    time.sleep(SLOW)
    driving.renew_leases()
    assert untils(queue) == after, "what has ended is left alone"


def test_what_was_left_runs_out_as_told(queue: Queue, driving: LeaseRenewer) -> None:
    batch = leased(queue)
    with driving.renew_during([batch]):
        time.sleep(SLOW)
        left, kept = (r.instance_uuid for r in batch.requests)
        driving.leave_leases({left: 1}, 17.0)
        driving.renew_leases()
    assert untils(queue)[left] == 17.0
    assert untils(queue)[kept] > time.time()


def test_a_new_fence_is_extended_a_lost_not(queue: Queue, driving: LeaseRenewer) -> None:
    batch = leased(queue, count=1)
    uuid = batch.requests[0].instance_uuid
    with driving.renew_during([batch]):
        fences = queue.database.write(leases.refence_requests, {uuid: 1})
        moved = leases.LeasedRequest(instance_uuid=uuid, fence=fences[uuid], name="n", launch_index=0, deadline=FAR, created_at=0.0)
        with driving.renew_during([msgspec.structs.replace(batch, requests=(moved,))]):
            before = untils(queue)
            time.sleep(SLOW)
            driving.renew_leases()
            assert untils(queue)[uuid] > before[uuid]
            queue.database.write(leases.lease_batches, "two", [batch.batch_id], time.time() + 2 * LEASE, 100.0)
            successor = untils(queue)
            driving.renew_leases()
            assert untils(queue) == successor


def test_an_endless_step_ends_at_the_deadline(queue: Queue, driving: LeaseRenewer) -> None:
    batch = leased(queue, deadline=time.time())
    before = untils(queue)
    with driving.renew_during([batch]):
        time.sleep(SLOW)
        driving.renew_leases()
    assert untils(queue) == before
