"""Who drives a request: leases, fences, and what happens when they are lost, on every server that answers."""

from __future__ import annotations

from collections import Counter

import pytest
import sqlalchemy as sa

from db.api.queue import leases
from db.api.rows.tables import build_requests
from db.sql.connection import Connection
from tests.support.conductor import FAR, LEASE, NOW, Queue
from tests.support.transactions import run_threads

LATER = NOW + LEASE + 1.0


def test_a_lease_takes_complete_batches_under_next_fence(queue: Queue) -> None:
    spec = queue.accept(3, deadline=2000.0)
    [batch] = queue.database.write(leases.lease_batches, "one", [spec.batch_id], NOW, LEASE)
    assert (batch.batch_id, batch.spec) == (spec.batch_id, spec)
    assert [(r.name, r.launch_index, r.fence) for r in batch.requests] == [
        ("server-0", 0, 1),
        ("server-1", 1, 1),
        ("server-2", 2, 1),
    ]
    assert {(r.deadline, r.created_at) for r in batch.requests} == {(2000.0, NOW)}
    rows = queue.requests()
    assert rows.keys() == {r.instance_uuid for r in batch.requests}
    assert {(r.state, r.fence, r.owner, r.lease_until) for r in rows.values()} == {("leased", 1, "one", NOW + LEASE)}


def test_a_leased_request_neither_waits_nor_leases_again(queue: Queue) -> None:
    spec = queue.accept(2)
    assert queue.database.read(leases.list_waiting, NOW, 10) == [spec.batch_id]
    queue.lease(spec.batch_id)
    assert queue.database.read(leases.list_waiting, NOW + LEASE - 1.0, 10) == []
    assert queue.lease(spec.batch_id, owner="two", now=NOW + LEASE - 1.0) == {}
    assert {row.owner for row in queue.requests().values()} == {"one"}


def test_an_expired_lease_continues_under_a_higher_fence(queue: Queue) -> None:
    spec = queue.accept(2)
    first = queue.lease(spec.batch_id)
    assert queue.database.read(leases.list_waiting, LATER, 10) == [spec.batch_id]
    second = queue.lease(spec.batch_id, owner="two", now=LATER)
    assert second == {uuid: fence + 1 for uuid, fence in first.items()}
    assert {(row.owner, row.lease_until) for row in queue.requests().values()} == {("two", LATER + LEASE)}


def test_several_batches_are_leased_with_their_respective_specs(queue: Queue) -> None:
    specs = {spec.batch_id: spec for spec in (queue.accept(2), queue.accept(1), queue.accept(3))}
    batches = queue.database.write(leases.lease_batches, "one", [*specs, "unknown"], NOW, LEASE)
    assert {batch.batch_id: batch.spec for batch in batches} == specs
    assert sorted(len(batch.requests) for batch in batches) == [1, 2, 3]
    assert queue.database.write(leases.lease_batches, "one", [], NOW, LEASE) == []


def test_only_the_queued_rest_of_batches_is_leased(queue: Queue) -> None:
    spec = queue.accept(4)
    fences = queue.lease(spec.batch_id)
    handed, buried, deleted, left = fences
    queue.hand_over({handed: 1})
    queue.bury({buried: 1})
    queue.delete(deleted)
    assert queue.lease(spec.batch_id, now=LATER) == {left: 2}


def test_the_most_urgent_then_the_oldest_come_first(queue: Queue) -> None:
    newest, oldest, urgent = (queue.accept(2, now=at).batch_id for at in (30.0, 10.0, 20.0))

    def raise_priority(tx: Connection) -> None:
        tx.execute(sa.update(build_requests).where(build_requests.c.batch_id == urgent).values(priority=5))

    queue.database.write(raise_priority)
    assert queue.database.read(leases.list_waiting, NOW, 10) == [urgent, oldest, newest]
    assert queue.database.read(leases.list_waiting, NOW, 2) == [urgent, oldest]


def test_more_requests_than_fit_into_one_statement(queue: Queue) -> None:
    """A batch of which every step needs more than one IN list."""
    spec = queue.accept(1100)
    fences = queue.lease(spec.batch_id)
    assert len(fences) == 1100
    fences = queue.database.write(leases.refence_requests, fences)
    assert set(fences.values()) == {2}
    queue.database.write(leases.renew_leases, fences, 5000.0)
    assert {(row.fence, row.lease_until) for row in queue.requests().values()} == {(2, 5000.0)}
    assert len(queue.hand_over(fences)) == 1100
    assert queue.requests() == {}
    assert {mapped.fence for mapped in queue.mapped().values()} == {2}


def test_concurrent_conductors_never_share_request_and_fence(queue: Queue) -> None:
    """Leases that run out at once, and six conductors after the same batches."""
    batches = [queue.accept(5).batch_id for _ in range(3)]
    held: list[tuple[str, int]] = []

    def drive(number: int) -> None:
        for _ in range(8):
            held.extend(queue.lease(*batches, owner=f"conductor-{number}", seconds=0.0).items())

    assert run_threads(6, drive) == []
    assert max(Counter(held).values()) == 1
    for uuid, row in queue.requests().items():
        assert sorted(fence for one, fence in held if one == uuid) == list(range(1, row.fence + 1))


def test_of_conductors_that_meet_one_gets_each_request(queue: Queue) -> None:
    batches = [queue.accept(4).batch_id for _ in range(5)]
    held: list[str] = []
    assert run_threads(6, lambda number: held.extend(queue.lease(*batches, owner=f"conductor-{number}"))) == []
    rest = queue.lease(*batches, owner="sweep")  # what was skipped because two met over it
    assert sorted([*held, *rest]) == sorted(queue.requests())
    assert {row.fence for row in queue.requests().values()} == {1}


class TestRefence:
    def test_each_request_still_held_gets_the_next_fence(self, queue: Queue) -> None:
        fences = queue.leased(3)
        newer = queue.database.write(leases.refence_requests, fences)
        assert newer == dict.fromkeys(fences, 2)
        assert {uuid: row.fence for uuid, row in queue.requests().items()} == newer
        assert queue.hand_over(fences) == []
        assert queue.hand_over(newer) == list(newer)

    def test_what_was_lost_is_missing_and_left_alone(self, queue: Queue) -> None:
        spec = queue.accept(4)
        fences = queue.lease(spec.batch_id)
        deleted, handed, overtaken, held = fences
        queue.delete(deleted)
        queue.hand_over({handed: 1})
        queue.database.write(leases.refence_requests, {overtaken: 1})
        assert queue.database.write(leases.refence_requests, fences) == {held: 2}
        assert {uuid: row.fence for uuid, row in queue.requests().items()} == {overtaken: 2, held: 2}
        assert queue.database.write(leases.refence_requests, {"unknown": 1}) == {}
        assert queue.database.write(leases.refence_requests, {}) == {}

    def test_a_request_without_driver_has_no_fence_changed(self, queue: Queue) -> None:
        queue.accept(1)
        [uuid] = queue.requests()
        assert queue.database.write(leases.refence_requests, {uuid: 0}) == {}
        assert queue.requests()[uuid].fence == 0

    def test_requests_of_different_fences_are_refenced_together(self, queue: Queue) -> None:
        fences = queue.leased(2)
        first, second = fences
        fences |= queue.database.write(leases.refence_requests, {first: 1})
        assert queue.database.write(leases.refence_requests, fences) == {first: 3, second: 2}

    def test_of_two_who_change_their_mind_one_does(self, queue: Queue) -> None:
        """However often it is asked under one fence, that fence is raised once."""
        fences = queue.leased(10)
        won: list[str] = []
        assert run_threads(4, lambda _: won.extend(queue.database.write(leases.refence_requests, fences))) == []
        assert sorted(won) == sorted(fences)
        assert {row.fence for row in queue.requests().values()} == {2}


class TestRenew:
    def test_the_holder_extends_or_shortens_its_lease(self, queue: Queue) -> None:
        spec = queue.accept(2)
        fences = queue.lease(spec.batch_id)
        queue.database.write(leases.renew_leases, fences, FAR)
        assert queue.database.read(leases.list_waiting, LATER, 10) == []
        queue.database.write(leases.renew_leases, fences, NOW + 1.0)
        assert queue.database.read(leases.list_waiting, NOW + 1.0, 10) == [spec.batch_id]
        assert queue.lease(spec.batch_id, now=NOW + 1.0) == dict.fromkeys(fences, 2)

    def test_a_lease_after_takeover_is_not_touched(self, queue: Queue) -> None:
        spec = queue.accept(2)
        old = queue.lease(spec.batch_id)
        queue.lease(spec.batch_id, owner="two", now=LATER)
        queue.database.write(leases.renew_leases, old, 0.0)
        assert {row.lease_until for row in queue.requests().values()} == {LATER + LEASE}

    def test_a_claims_request_lock_delays_no_other_leases(self, queue: Queue) -> None:
        if queue.database.dialect == "sqlite":
            pytest.skip("a file has one writer at a time")
        spec = queue.accept(3)
        fences = queue.lease(spec.batch_id)
        claimed = min(fences)

        def another(_: int) -> None:
            assert queue.lease(spec.batch_id, owner="two", now=LATER) == {}

        def claim(tx: Connection) -> None:
            tx.execute(sa.select(build_requests).where(build_requests.c.instance_uuid == claimed).with_for_update())
            assert run_threads(1, lambda _: queue.database.write(leases.renew_unlocked, fences, LATER + LEASE)) == []
            assert run_threads(1, another) == []

        queue.database.write(claim)
        ends = {uuid: (row.owner, row.lease_until) for uuid, row in queue.requests().items()}
        assert ends == {uuid: ("one", NOW + LEASE if uuid == claimed else LATER + LEASE) for uuid in fences}
        queue.database.write(leases.renew_unlocked, fences, LATER + LEASE)
        assert {row.lease_until for row in queue.requests().values()} == {LATER + LEASE}
