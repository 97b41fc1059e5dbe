"""What an audit finds of servers, requests and rows that do not agree, and what becomes of it."""

from __future__ import annotations

import time
import uuid as uuids

import sqlalchemy as sa

from conductor.audit import batches, queue, rows, servers
from conductor.roll_back import judge_batches
from db.api.queue import holds
from db.api.rows.tables import build_requests, instance_mappings
from db.api.rows.tables import holds as hold_rows
from db.cell import instances, staging
from db.cell.tables import instances as instance_table
from objects import lifecycle
from objects.instance import Failure, FailureClass, Instance, State
from tests.support import auditing
from tests.support.auditing import LONG_AGO, Auditor, Ground, away
from tests.support.batches import change, fail, open_batches, whole
from tests.support.ground import USUAL, on
from tests.support.world import world_fixture

site = world_fixture(grounds=USUAL, scope="module", of=Ground)


consistent = auditing.consistent


def request(uuid: str, batch: str, **changes: object) -> dict[str, object]:
    row: dict[str, object] = {"instance_uuid": uuid, "batch_id": batch, "state": "queued", "deadline": 1e12, "created_at": 1e12}
    return {"lease_until": 0.0, "fence": 0, "priority": 0} | row | changes


def mapping(uuid: str) -> sa.Update:
    return sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == uuid)


def row(uuid: str) -> sa.Update:
    return sa.update(instance_table).where(instance_table.c.uuid == uuid)


def repaired(site: Ground, kind: str, uuid: str) -> None:
    """It is found, and nothing else; it is repaired; it is found no more."""
    assert site.auditor.kinds() == [(kind, uuid)]
    assert site.auditor.repair() == []
    assert site.auditor.kinds() == []


def test_consistent_servers_give_no_finding(site: Ground) -> None:
    site.active(2)
    site.buried()
    [deleted] = site.active()
    site.cloud.delete(deleted)
    site.conductor.deleter.run_round()
    site.cloud.databases["cell1"].write(instances.transition_rows, [deleted], _gone, 1.0)
    site.keep()
    queued = site.conductor.drive(site.cloud.accept(), upto="staged")
    assert Auditor(site.conductor, overdue=3600.0).kinds() == []
    queued.bury()
    site.keep()


@on("site", "lite")  # what they read and write is tried on servers by test_roll_back.py
class TestBatches:
    def test_one_that_all_are_active_of_is_settled(self, site: Ground) -> None:
        site.active(2, all_or_nothing=True)
        [batch] = open_batches(site.cloud)
        repaired(site, batches.UNDECIDED, batch.batch_id)
        assert open_batches(site.cloud) == []

    def test_one_that_is_under_way_is_left_alone(self, site: Ground) -> None:
        driven = site.conductor.drive(whole(site.cloud, 2), upto="staged")
        assert (batches.UNDECIDED, driven.batch.batch_id) not in site.auditor.kinds()
        for uuid in driven.uuids:
            site.cloud.delete(uuid)
        site.keep()
        site.conductor.batches.decide_batches()

    def test_a_failed_batch_is_rolled_back_waits_named(self, site: Ground) -> None:
        failed, active, scheduled = site.ordered(3, all_or_nothing=True)
        fail(site.cloud, failed)
        change(site.cloud, active, lambda r: lifecycle.accept_order(r, r.host, r.fence, r.attempt, "agent"))
        site.keep()
        [batch] = open_batches(site.cloud)
        assert (batches.UNDECIDED, batch.batch_id) in site.auditor.kinds()
        assert site.auditor.repair() == []
        assert sorted(site.auditor.kinds()) == sorted([(servers.STANDING, active), (batches.HALF, batch.batch_id)])
        assert site.cloud.row(scheduled).state is State.ERROR
        assert site.cloud.row(active).state is State.DELETING
        change(site.cloud, active, lambda r: lifecycle.confirm_gone(r, r.host, r.attempt, 1.0))
        site.keep()
        repaired(site, batches.HALF, batch.batch_id)

    def test_an_unreachable_cells_servers_are_unknown(self, site: Ground) -> None:
        failed, other = site.ordered(2, all_or_nothing=True)
        fail(site.cloud, failed)
        site.keep()
        [batch] = judge_batches(site.cloud.api, open_batches(site.cloud))
        with away(site.conductor.databases["cell1"]):
            assert (batches.HALF, batch.batch_id) not in site.auditor.kinds()
        site.conductor.batches.decide_batches()
        site.keep()
        site.conductor.batches.decide_batches()
        assert site.cloud.row(other).state is State.ERROR


class TestQueue:
    def test_a_request_beside_a_decided_mapping_is_removed(self, site: Ground) -> None:
        [uuid] = site.active()
        batch = site.cloud.evidence().servers[0].batch_id
        site.api(sa.insert(build_requests), request(uuid, batch))
        repaired(site, queue.DECIDED, uuid)
        assert uuid not in site.cloud.requests()
        assert site.cloud.row(uuid).state is State.ACTIVE

    def test_a_request_without_mapping_is_removed(self, site: Ground) -> None:
        uuid = str(uuids.uuid4())
        site.api(sa.insert(build_requests), request(uuid, str(uuids.uuid4())))
        repaired(site, queue.UNMAPPED, uuid)

    def test_a_request_that_nobody_drives_is_told(self, site: Ground) -> None:
        spec = site.cloud.accept()
        [uuid] = site.cloud.uuids(spec)
        assert Auditor(site.conductor, overdue=60.0).kinds() == []
        assert site.auditor.kinds() == [(queue.WAITING, uuid)]
        assert site.auditor.repair() == [(queue.WAITING, uuid)], "it is a conductor's to build"
        site.cloud.delete(uuid)

    def test_a_held_request_is_left_to_its_hold(self, site: Ground) -> None:
        spec = site.cloud.hold(timeout=-100.0)
        driven = site.conductor.drive(spec, upto="claimed")
        assert site.cloud.api.write(holds.park_requests, {spec.batch_id: driven.fences}, time.time()) == set(driven.uuids)
        assert site.auditor.kinds() == []
        assert site.cloud.keeper.ledger.write(holds.release_hold, spec.batch_id, time.time())

    def test_a_held_request_without_hold_is_queued(self, site: Ground) -> None:
        spec = site.cloud.hold()
        driven = site.conductor.drive(spec, upto="claimed")
        assert site.cloud.api.write(holds.park_requests, {spec.batch_id: driven.fences}, time.time()) == set(driven.uuids)
        site.api(sa.delete(hold_rows))
        [uuid] = driven.uuids
        assert site.auditor.kinds() == [(queue.STRAY, uuid)]
        site.auditor.repair()
        assert site.cloud.requests()[uuid].state == "queued"
        site.conductor.build(spec)
        assert site.cloud.row(uuid).state is State.ERROR

    def test_a_driven_request_belongs_to_its_driver(self, site: Ground) -> None:
        driven = site.conductor.lease(site.cloud.accept().batch_id)
        driven.renew(1e12)
        assert Auditor(site.conductor, overdue=10.0).kinds() == []
        driven.bury()

    def test_an_overdue_request_is_reported_whatever_its_lease(self, site: Ground) -> None:
        """As where it is leased again and again, and cannot be ended."""
        driven = site.conductor.lease(site.cloud.accept(timeout=-100.0).batch_id)
        driven.renew(1e12)
        [uuid] = driven.uuids
        auditor = Auditor(site.conductor, overdue=10.0)
        assert auditor.kinds() == [(queue.LATE, uuid)]
        assert auditor.repair() == [(queue.LATE, uuid)], "it is a conductor's to end"
        driven.bury()


class TestUndecided:
    def test_a_server_that_is_nowhere_ends_in_error(self, site: Ground) -> None:
        driven = site.conductor.drive(site.cloud.accept(), upto="staged")
        [uuid] = driven.uuids
        site.api(sa.delete(build_requests).where(build_requests.c.instance_uuid == uuid))
        repaired_now = site.auditor.repair()
        assert repaired_now == []
        assert driven.hand_over() == [], "who drove it has lost it"
        site.conductor.build(driven.spec)
        assert site.cloud.mapped(uuid).state == "error"
        assert uuid not in site.cloud.evidence().claims
        assert site.cloud.row(uuid).fault == "Build timed out in scheduling."
        site.keep()

    def test_a_server_with_a_cell_row_is_mapped(self, site: Ground) -> None:
        """As after the API database was restored from a backup."""
        [uuid] = site.active()
        site.api(mapping(uuid).values(cell_uuid=None, seen=0, state="building", host=None))
        assert set(site.auditor.kinds()) == {(servers.NOWHERE, uuid), (rows.UNMAPPED, uuid)}
        assert site.auditor.repair() == []
        assert uuid not in site.cloud.requests()
        assert site.auditor.repair() == [], "the summary follows"
        assert site.cloud.mapped(uuid).state == "active"


class TestMissing:
    def test_a_row_that_was_lost_becomes_an_error(self, site: Ground) -> None:
        [uuid] = site.active()
        site.cell("cell1", sa.delete(instance_table).where(instance_table.c.uuid == uuid))
        repaired(site, servers.ROWLESS, uuid)
        assert (site.cloud.mapped(uuid).state, site.cloud.row(uuid).state) == ("error", State.ERROR)
        assert "lost" in (site.cloud.row(uuid).fault or "")
        assert uuid not in site.cloud.evidence().claims

    def test_a_row_that_no_mapping_names_is_mapped(self, site: Ground) -> None:
        [uuid] = site.active()
        site.api(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid == uuid))
        kinds = site.auditor.kinds()
        assert (rows.UNMAPPED, uuid) in kinds
        site.auditor.repair()
        mapped = site.cloud.mapped(uuid)
        assert (mapped.cell_uuid, mapped.state, mapped.host) == (site.uuid_of("cell1"), "active", site.cloud.row(uuid).host)
        site.auditor.repair()

    def test_a_cell_that_does_not_exist_is_told(self, site: Ground) -> None:
        [uuid] = site.active()
        site.api(mapping(uuid).values(cell_uuid="nowhere"))
        assert (servers.NO_CELL, uuid) in site.auditor.kinds()
        site.api(mapping(uuid).values(cell_uuid=site.uuid_of("cell1")))


class TestElsewhere:
    def copy(self, site: Ground, uuid: str, state: State) -> None:
        """Another row of it, in a cell that it is not mapped to."""
        here = site.cloud.row(uuid)
        there = Instance(uuid=uuid, state=state, fence=here.fence, host="b1", node="b1", deadline=1e13)
        new = staging.NewInstance(instance=there, name="copy", launch_index=0, created_at=1.0)
        spec = site.cloud.accept()
        site.cloud.delete(site.cloud.uuids(spec)[0])
        site.cloud.databases["cell2"].write(staging.stage_instances, spec, [new], LONG_AGO)

    def test_a_live_row_in_another_cell_is_deleted(self, site: Ground) -> None:
        [uuid] = site.active()
        self.copy(site, uuid, State.SCHEDULED)
        repaired(site, rows.ELSEWHERE, uuid)
        assert {cell: r.state for cell, r in site.cloud.rows(uuid).items()} == {"cell1": State.ACTIVE, "cell2": State.DELETED}

    def test_a_row_changed_since_seen_is_not_touched(self, site: Ground) -> None:
        [uuid] = site.active()
        self.copy(site, uuid, State.SCHEDULED)
        found = site.auditor.confirmed()
        site.cell("cell2", row(uuid).values(state="building", version=9))
        site.auditor.audit.repair_findings(found)
        assert site.cloud.rows(uuid)["cell2"].state is State.BUILDING
        site.cell("cell2", sa.delete(instance_table).where(instance_table.c.uuid == uuid))

    def test_an_inert_copy_is_normal_for_a_while(self, site: Ground) -> None:
        [uuid] = site.active()
        self.copy(site, uuid, State.STAGED)
        site.cell("cell2", row(uuid).values(updated_at=1e12))
        assert Auditor(site.conductor, overdue=60.0).kinds() == []
        site.cell("cell2", row(uuid).values(updated_at=LONG_AGO))
        repaired(site, rows.UNSETTLED, uuid)
        assert set(site.cloud.rows(uuid)) == {"cell1"}

    def test_a_handed_over_staged_row_is_activated(self, site: Ground) -> None:
        [uuid] = site.ordered()
        repaired(site, rows.UNSETTLED, uuid)
        assert site.cloud.row(uuid).state is State.SCHEDULED

    def test_a_row_living_before_hand_over_is_adopted(self, site: Ground) -> None:
        """The API level has lost the hand-over: whoever drives the request loses it, and builds no second guest."""
        driven = site.conductor.drive(site.cloud.accept(force_hosts=("a1",), timeout=1e9), upto="staged")
        [uuid] = driven.uuids
        site.cell("cell1", row(uuid).values(state="scheduled"))
        assert (rows.UNDECIDED, uuid) in site.auditor.kinds()
        assert site.auditor.repair() == []
        assert driven.hand_over() == []
        assert site.cloud.mapped(uuid).cell_uuid == site.uuid_of("cell1")
        assert uuid not in site.cloud.requests()


class TestDeletes:
    def test_an_undelivered_delete_reaches_its_cell(self, site: Ground) -> None:
        [uuid] = site.active()
        site.cloud.delete(uuid)
        assert Auditor(site.conductor, overdue=60.0).kinds() == []
        assert site.auditor.kinds() == [(servers.CARRY, uuid)]
        assert site.auditor.repair() == []
        assert site.cloud.row(uuid).state is State.DELETING
        assert site.auditor.kinds() == [(servers.UNFINISHED, uuid)]
        self.finish(site, uuid)

    def finish(self, site: Ground, uuid: str) -> None:
        site.cloud.databases["cell1"].write(instances.transition_rows, [uuid], _gone, 1.0)
        site.keep()

    def test_a_delete_without_row_leaves_a_tombstone(self, site: Ground) -> None:
        [uuid] = site.active()
        site.cloud.delete(uuid)
        site.cell("cell1", sa.delete(instance_table).where(instance_table.c.uuid == uuid))
        repaired(site, servers.CARRY, uuid)
        assert site.cloud.row(uuid).state is State.DELETED
        assert site.cloud.mapped(uuid).state == "deleted"
        assert uuid not in site.cloud.evidence().claims

    def test_a_delete_that_was_not_confirmed_is(self, site: Ground) -> None:
        [uuid] = site.active()
        site.cloud.delete(uuid)
        site.conductor.deleter.run_round()
        self.finish(site, uuid)
        site.api(mapping(uuid).values(state="active"))
        repaired(site, servers.CONFIRM, uuid)
        assert site.cloud.mapped(uuid).state == "deleted"

    def test_an_unconfirmed_delete_in_cell0_is_confirmed(self, site: Ground) -> None:
        uuid = site.buried()
        site.cloud.delete(uuid)
        site.conductor.deleter.run_round()
        site.api(mapping(uuid).values(state="error"))
        repaired(site, servers.CONFIRM, uuid)

    def test_a_server_deleted_only_in_cell_is_deleted(self, site: Ground) -> None:
        [uuid] = site.active()
        site.cloud.databases["cell1"].write(instances.delete, [uuid], 1.0)
        assert site.auditor.kinds() == [(servers.UNFINISHED, uuid)]
        self.finish(site, uuid)
        repaired(site, servers.CELL_ONLY, uuid)
        assert site.cloud.mapped(uuid).deleted


class TestSummary:
    def test_a_summary_that_differs_is_told_again(self, site: Ground) -> None:
        [uuid] = site.active()
        site.api(mapping(uuid).values(state="building", seen=99))
        repaired(site, servers.OUTDATED_SUMMARY, uuid)
        assert site.cloud.mapped(uuid).state == "active"

    def test_an_error_keeps_its_fault(self, site: Ground) -> None:
        [uuid] = site.ordered()
        site.cloud.databases["cell1"].write(instances.transition_rows, [uuid], _give_up, 1.0)
        site.keep()
        fault = next(s.fault for s in site.cloud.evidence().servers if s.uuid == uuid)
        assert fault
        site.api(mapping(uuid).values(state="active", fault=None))
        repaired(site, servers.OUTDATED_SUMMARY, uuid)
        assert next(s.fault for s in site.cloud.evidence().servers if s.uuid == uuid) == fault

    def test_nothing_is_said_while_the_feed_is_behind(self, site: Ground) -> None:
        uuids_ = site.ordered(2)
        site.keep()
        site.cloud.databases["cell1"].write(instances.transition_rows, uuids_, _active, 1.0)
        kinds = {kind for kind, _ in site.auditor.kinds()}
        assert servers.OUTDATED_SUMMARY not in kinds
        site.keep()

    def test_a_row_changing_during_repetition_reports_itself(self, site: Ground) -> None:
        [uuid] = site.active()
        site.api(mapping(uuid).values(state="building", seen=99))
        found = site.auditor.confirmed()
        site.cell("cell1", row(uuid).values(version=50))
        site.auditor.audit.repair_findings(found)
        assert site.cloud.row(uuid).version == 50
        site.auditor.repair()


def _gone(r: Instance) -> lifecycle.Outcome:
    return lifecycle.confirm_gone(r, r.host or "", r.attempt, 1.0)


def _active(r: Instance) -> lifecycle.Outcome:
    begun = lifecycle.accept_order(r, r.host or "", r.fence, r.attempt, "agent")
    assert isinstance(begun, lifecycle.Change)
    return lifecycle.confirm_active(begun.row, r.host or "", r.fence, r.attempt, "agent", 1.0)


def _give_up(r: Instance) -> lifecycle.Outcome:
    failure = Failure(kind=FailureClass.REQUEST, error="Aborted", message="no such image", at=1.0)
    return lifecycle.fail_attempt(r, r.host or "", r.fence, r.attempt, "agent", failure)
