"""Holds end once: booted, released or expired, on every server that answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from db.api.claims import claims, server_groups
from db.api.projects import quotas
from db.api.queue import due, holds, leases
from db.api.rows import incarnation, metering
from db.api.rows.incarnation import Known
from db.api.rows.tables import build_requests
from db.api.rows.tables import holds as hold_rows
from db.sql.connection import Connection
from objects import errors
from objects.group import GroupPolicy
from objects.hold import HoldState
from objects.lifecycle import FENCE_STEP
from tests.support import fleet
from tests.support.conductor import FAR, LEASE, NOW, Queue
from tests.support.transactions import run_threads

END = NOW + 600.0


def claimed(queue: Queue) -> list[str]:
    return sorted(uuid for uuid, _, _ in queue.database.read(claims.list_claimed, sorted(queue.mapped())))


def together(*works: Callable[[], bool]) -> list[bool]:
    """Their answers, when they run at the same moment."""
    answers = [False] * len(works)

    def work(number: int) -> None:
        answers[number] = works[number]()

    assert run_threads(len(works), work) == []
    return answers


def states(queue: Queue) -> set[str]:
    return {row.state for row in queue.requests().values()}


class TestHeld:
    def test_nobody_leases_or_sweeps_a_held_request(self, queue: Queue) -> None:
        spec, fences = queue.held(2)
        late = END - 1.0
        assert states(queue) == {"held"}
        assert queue.database.read(leases.list_waiting, late, 10) == []
        assert queue.lease(spec.batch_id, now=late) == {}
        assert queue.database.write(leases.lease_without_spec, "one", FAR * 2, LEASE, 10) == []
        assert queue.database.read(metering.count_queued, 5) == []
        found = queue.database.read(due.look_for_work, late, 0.0, LEASE, 0.0)
        assert (found.requests, found.waiting, found.overdue, found.expired) == (False, False, False, False)
        assert queue.database.read(due.look_for_work, END, 0.0, LEASE, 0.0).expired
        assert queue.database.read(claims.list_orphans) == []
        queue.database.write(leases.renew_leases, fences, FAR)  # a driver that was late
        assert {row.lease_until for row in queue.requests().values()} == {0.0}

    def test_it_is_shown_with_its_hosts(self, queue: Queue) -> None:
        spec = queue.hold(2)
        [placing] = queue.database.read(holds.list_all, None)
        assert (placing.id, placing.hold_state, placing.expires_at) == (spec.batch_id, HoldState.PLACING, END)
        assert [(server.held, server.host) for server in placing.servers] == [(False, None)] * 2
        other, fences = queue.held(2)
        found = queue.database.read(holds.read, other.batch_id, other.project_id)
        assert found is not None
        assert (found.hold_state, {server.uuid for server in found.servers}) == (HoldState.HELD, set(fences))
        assert all(server.host and server.cell for server in found.servers)
        assert queue.database.read(holds.read, other.batch_id, "another") is None
        assert queue.database.read(holds.list_all, "another") == []

    def test_there_are_only_so_many(self, queue: Queue) -> None:
        queue.hold()
        with pytest.raises(errors.OverQuota, match="max_holds"):
            queue.database.write(holds.begin_hold, "b", "p", "u", NOW, END, 1)

    def test_its_project_is_charged(self, queue: Queue) -> None:
        spec, _ = queue.held(3)
        assert queue.database.read(quotas.get, spec.project_id).used.instances == 3
        assert queue.expire(spec)
        assert queue.database.read(quotas.get, spec.project_id).used.instances == 0

    def test_a_restored_database_keeps_it_held(self, queue: Queue) -> None:
        """A comparison begins: holders lose their fences, and nothing expires until it is done."""
        spec, fences = queue.held(2)
        now = queue.database.write(incarnation.advance_mark)
        assert queue.database.write(incarnation.close, now.uuid, "test")
        assert states(queue) == {"held"}
        assert all(row.fence > FENCE_STEP for row in queue.requests().values())
        known = Known(uuid=now.uuid, mark=now.mark)
        assert not queue.expire(spec, known)
        assert queue.database.write(incarnation.open_, now.uuid, "6a3f0c1e-0000-4000-8000-000000000001", now.mark)
        assert not queue.expire(spec, known), "another incarnation"
        assert queue.expire(spec)
        assert queue.requests().keys().isdisjoint(fences)


class TestParked:
    def test_only_while_its_hold_is_there(self, queue: Queue) -> None:
        spec = queue.hold(2)
        fences = queue.lease(spec.batch_id)
        assert queue.boot(spec)
        assert queue.database.write(holds.park_requests, {spec.batch_id: fences}, NOW) == set()
        assert states(queue) == {"leased"}

    def test_only_under_its_fence(self, queue: Queue) -> None:
        spec = queue.hold(2)
        first = queue.lease(spec.batch_id)
        second = queue.lease(spec.batch_id, now=NOW + LEASE + 1.0)
        assert queue.database.write(holds.park_requests, {spec.batch_id: first}, NOW) == set()
        assert queue.database.write(holds.park_requests, {spec.batch_id: second}, NOW) == set(second)
        assert queue.database.write(holds.park_requests, {spec.batch_id: second}, NOW) == set(), "doubled"
        assert queue.hand_over(second) == []


class TestEnds:
    def test_a_boot_queues_it_with_its_claims_once(self, queue: Queue) -> None:
        spec, fences = queue.held(2)
        before = claimed(queue)
        assert queue.boot(spec)
        assert not queue.boot(spec)
        assert not queue.expire(spec)
        assert not queue.release(spec)
        assert states(queue) == {"queued"}
        assert queue.database.read(leases.list_waiting, NOW, 10) == [spec.batch_id]
        again = queue.lease(spec.batch_id)
        assert again == {uuid: fence + 2 for uuid, fence in fences.items()}
        assert claimed(queue) == before
        assert len(queue.hand_over(again)) == 2

    def test_it_expires_by_the_databases_clock(self, queue: Queue) -> None:
        spec, fences = queue.held(2)
        assert queue.database.read(holds.list_expired, END - 1.0, 10) == []
        assert not queue.expire(spec, now=END - 1.0)
        assert queue.database.read(holds.list_expired, END, 10) == [spec.batch_id]
        assert queue.expire(spec, now=END)
        assert (queue.requests(), claimed(queue)) == ({}, [])
        assert {(mapped.deleted, mapped.state) for mapped in queue.mapped().values()} == {(True, "deleted")}
        assert not queue.boot(spec)
        assert len(fences) == 2

    def test_a_release_frees_hostless_requests_too(self, queue: Queue) -> None:
        spec = queue.hold(2)
        fences = queue.lease(spec.batch_id)
        assert queue.release(spec)
        assert queue.requests() == {}
        assert queue.hand_over(fences) == []

    def test_it_spares_cell_servers_and_ends_buried_ones(self, queue: Queue) -> None:
        """A cell has it: only a restored database shows that."""
        spec = queue.hold(3)
        fences = queue.lease(spec.batch_id)
        handed, buried, _ = fences
        queue.hand_over({handed: 1})
        queue.bury({buried: 1})
        assert queue.expire(spec, now=END)
        mapped = queue.mapped()
        assert [mapped[uuid].deleted for uuid in fences] == [False, True, True]

    def test_members_of_a_group_hold_places_until_then(self, queue: Queue) -> None:
        group = fleet.group(GroupPolicy.ANTI_AFFINITY)
        queue.database.write(server_groups.create, group)
        spec, _ = queue.held(4, group=group)
        rest = queue.site.leased(fleet.spec(group=group), 5)
        with pytest.raises((errors.NoValidHost, errors.Conflict)):
            queue.site.scheduler().select_destinations(fleet.CONTEXT, rest, list(rest.fences))
        assert queue.expire(spec)
        assert len(queue.site.scheduler().select_destinations(fleet.CONTEXT, rest, list(rest.fences))) == 5

    @pytest.mark.parametrize("turn", range(6))
    def test_a_boot_and_the_end_at_one_moment(self, queue: Queue, turn: int) -> None:
        """One of them wins: all servers are queued with their claims, or all are gone."""
        spec, fences = queue.held(3)
        won = together(lambda: queue.boot(spec), lambda: queue.expire(spec), lambda: queue.release(spec))
        assert sorted(won) == [False, False, True], turn
        if won[0]:
            assert (states(queue), claimed(queue)) == ({"queued"}, sorted(fences))
        else:
            assert (queue.requests(), claimed(queue)) == ({}, [])

    @pytest.mark.parametrize("turn", range(6))
    def test_a_boot_while_it_is_parked(self, queue: Queue, turn: int) -> None:
        """Nothing stays held: either it is queued again, or the conductor goes on with it."""
        spec = queue.hold(3)
        fences = queue.lease(spec.batch_id)
        parked, booted = together(
            lambda: bool(queue.database.write(holds.park_requests, {spec.batch_id: fences}, NOW)), lambda: queue.boot(spec)
        )
        assert booted
        assert states(queue) == ({"queued"} if parked else {"leased"}), turn


def test_a_held_request_without_a_hold_becomes_error(queue: Queue) -> None:
    """Only somebody who writes by hand leaves one."""
    spec, fences = queue.held(2)
    uuids = sorted(fences)
    assert queue.database.read(holds.without_hold, uuids) == set()
    assert queue.database.write(holds.queue_strays, uuids) == 0
    queue.database.write(_forget)
    assert queue.database.read(holds.without_hold, uuids) == set(uuids)
    assert queue.database.write(holds.queue_strays, uuids) == 2
    deadlines = queue.database.read(lambda tx: list(tx.execute(sa.select(build_requests.c.deadline)).scalars()))
    assert (states(queue), set(deadlines)) == ({"queued"}, {NOW})
    assert queue.lease(spec.batch_id).keys() == fences.keys()


def _forget(tx: Connection) -> None:
    tx.execute(sa.delete(hold_rows))
