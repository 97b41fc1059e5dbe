"""What an audit finds of claims, usage, groups, hosts, guests, secrets, deadlines and feeds, and what becomes of it."""

from __future__ import annotations

import time
import uuid as uuids
from collections.abc import Iterator

import msgspec
import pytest
import sqlalchemy as sa

from conductor.audit import claims, feeds, guests, hosts, late, quota, secrets, servers, slots, usage
from db import secrets as kept
from db.api.claims import claim_repair, server_groups
from db.api.claims import claims as ledger
from db.api.deployment import host_mappings
from db.api.reconcile import events
from db.api.rows.tables import allocations, feed_cursors, group_slots, instance_mappings, inventories, quotas, request_specs
from db.api.rows.tables import host_mappings as host_table
from db.cell import compute_nodes, instances, services
from db.cell.tables import build_secrets
from db.cell.tables import builds as build_table
from db.cell.tables import compute_nodes as node_table
from db.cell.tables import instances as instance_table
from db.cell.tables import services as service_table
from db.sql.connection import ApiTransaction
from objects import lifecycle, stored
from objects.cell import HostMapping
from objects.group import GroupPolicy, ServerGroup
from objects.instance import Instance, State
from objects.process import AGENT_BINARY
from objects.spec import RequestSpec
from tests.support import applying, auditing, fleet
from tests.support.auditing import LONG_AGO, Auditor, Ground, away, flat
from tests.support.ground import USUAL
from tests.support.world import world_fixture

site = world_fixture({"cell1": ["a1", "a2", "a3"], "cell2": ["b1"]}, USUAL, scope="module", of=Ground)


consistent = auditing.consistent


def repaired(site: Ground, kind: str, *keys: str) -> None:
    """It is found, and nothing else; it is repaired; it is found no more."""
    assert sorted(site.auditor.kinds()) == [(kind, key) for key in sorted(keys)]
    assert site.auditor.repair() == []
    assert site.auditor.kinds() == []
    assert applying.sound(site.cloud)


def allocation(uuid: str) -> sa.ColumnElement[bool]:
    return allocations.c.instance_uuid == uuid


class TestClaims:
    def test_a_claim_that_nothing_stands_on_is_released(self, site: Ground) -> None:
        [uuid] = site.active()
        claim = site.read(sa.select(allocations).where(allocation(uuid)))[0]
        stray = str(uuids.uuid4())
        site.api(sa.insert(allocations), claim | {"instance_uuid": stray})
        found = [str(finding) for finding in site.auditor.findings()]
        host = site.cloud.row(uuid).host
        assert f"claim without instance: 1 vcpus of {stray} on {host} (cell1)" in found
        assert [kind for kind, _ in site.auditor.kinds()] == [claims.ORPHAN, usage.MISCOUNTED]
        assert site.auditor.repair() == []
        site.auditor.repair()  # the count was that of the claims without the stray one
        assert applying.sound(site.cloud)

    def test_an_instance_without_claim_gets_one_in_place(self, site: Ground) -> None:
        [uuid] = site.active()
        site.cloud.keeper.ledger.write(_release, [uuid])
        repaired(site, servers.UNCLAIMED, uuid)
        assert site.cloud.evidence().claims[uuid] == site.cloud.row(uuid).host

    def test_instances_ended_meanwhile_get_no_claim(self, site: Ground) -> None:
        [uuid] = site.active()
        site.cloud.keeper.ledger.write(_release, [uuid])
        found = site.auditor.confirmed()
        site.cloud.delete(uuid)
        site.conductor.deleter.run_round()
        site.cloud.databases["cell1"].write(instances.transition_rows, [uuid], _gone, 1.0)
        site.keep()
        site.auditor.audit.repair_findings(found)
        assert uuid not in site.cloud.evidence().claims

    def test_a_claim_on_another_host_follows_the_instance(self, site: Ground) -> None:
        [uuid] = site.active()
        host = site.cloud.row(uuid).host
        other = next(name for name in ("a1", "a2") if name != host)
        site.cloud.keeper.ledger.write(_move, uuid, other)
        repaired(site, servers.MISPLACED, uuid)
        assert site.cloud.evidence().claims[uuid] == host

    def test_a_project_is_charged_for_what_it_has(self, site: Ground) -> None:
        site.active()
        before = site.read(sa.select(quotas))
        site.api(sa.update(quotas).values(used_instances=7, used_cores=0))
        assert site.auditor.kinds() == [(quota.MISCHARGED, before[0]["project_id"])]
        assert site.auditor.repair() == []
        assert site.read(sa.select(quotas)) == before

    def test_usage_is_counted_again(self, site: Ground) -> None:
        [uuid] = site.active()
        [row] = site.read(sa.select(inventories).where(inventories.c.host == site.cloud.row(uuid).host))
        changed = sa.update(inventories).where(inventories.c.id == row["id"])
        site.api(changed.values(used_vcpus=77, instances=3, used_disk_gb=0))
        assert site.auditor.kinds() == [(usage.MISCOUNTED, str(row["id"]))]
        assert site.auditor.repair() == []
        [after] = site.read(sa.select(inventories).where(inventories.c.id == row["id"]))
        assert {name: after[name] for name in ("used_vcpus", "used_disk_gb", "instances")} == {
            name: row[name] for name in ("used_vcpus", "used_disk_gb", "instances")
        }
        assert after["generation"] > row["generation"], "schedulers are to read it again"


class TestResourceClasses:
    """The same of custom ones."""

    @pytest.fixture(autouse=True)
    def offered(self, site: Ground) -> Iterator[None]:
        applying.tell(site.cloud, "cell1", applying.node("a1", resources={"CUSTOM_GPU": 4}))
        site.keep()
        yield
        applying.tell(site.cloud, "cell1", applying.node("a1"))
        site.keep()

    def used(self, site: Ground) -> dict[str, int]:
        return applying.inventories(site.cloud)["a1"].used_resources

    def test_a_lost_claim_takes_them_again(self, site: Ground) -> None:
        [uuid] = site.active(flavor=fleet.flavor_asking({"CUSTOM_GPU": 3}))
        assert self.used(site) == {"CUSTOM_GPU": 3}
        site.cloud.keeper.ledger.write(_release, [uuid])
        assert self.used(site) == {}
        repaired(site, servers.UNCLAIMED, uuid)
        assert self.used(site) == {"CUSTOM_GPU": 3}

    def test_wrong_usage_is_counted_again(self, site: Ground) -> None:
        before = self.used(site)
        [key] = [row.id for row in applying.inventories(site.cloud).values() if row.host == "a1"]
        site.api(sa.update(inventories).where(inventories.c.id == key).values(used_resources='{"CUSTOM_GPU":9}'))
        assert any("GiB, 9 CUSTOM_GPU by" in str(finding) for finding in site.auditor.findings())
        repaired(site, usage.MISCOUNTED, str(key))
        assert self.used(site) == before

    def test_a_deviating_offer_is_copied_from_its_node(self, site: Ground) -> None:
        site.api(sa.update(inventories).where(inventories.c.host == "a1").values(cap_resources=None))
        assert any("GiB, 4 CUSTOM_GPU" in str(finding) for finding in site.auditor.findings())
        repaired(site, hosts.OFFER, "a1")
        assert applying.inventories(site.cloud)["a1"].cap_resources == {"CUSTOM_GPU": 4}


def _release(tx: ApiTransaction, stamp: ledger.Stamp, uuids_: list[str]) -> None:
    ledger.release_claims(tx, stamp, uuids_)


def _move(tx: ApiTransaction, stamp: ledger.Stamp, uuid: str, host: str) -> None:
    ledger.move_claims(tx, stamp, [ledger.ClaimMove(instance_uuid=uuid, host=host, node=host)])


def _gone(row: Instance) -> lifecycle.Outcome:
    return lifecycle.confirm_gone(row, row.host or "", row.attempt, 1.0)


class TestGroups:
    def member(self, site: Ground) -> tuple[str, ServerGroup, str]:
        group = ServerGroup(uuid=str(uuids.uuid4()), name=str(uuids.uuid4()), project_id="p", policy=GroupPolicy.ANTI_AFFINITY)
        site.cloud.api.write(server_groups.create, group)
        [uuid] = site.active(group=group)
        return uuid, group, site.cloud.row(uuid).host or ""

    def slots(self, site: Ground, uuid: str) -> list[tuple[str, bool]]:
        found = site.read(sa.select(group_slots).where(group_slots.c.instance_uuid == uuid))
        return sorted((row["host"], bool(row["held"])) for row in found)

    def test_a_slot_without_member_is_removed(self, site: Ground) -> None:
        _, group, _ = self.member(site)
        stray = str(uuids.uuid4())
        site.api(sa.insert(group_slots), {"group_uuid": group.uuid, "instance_uuid": stray, "host": "a1", "held": False})
        repaired(site, slots.STRAY, stray)

    def test_a_slot_on_another_host_is_moved(self, site: Ground) -> None:
        uuid, _, host = self.member(site)
        other = next(name for name in ("a1", "a2", "a3") if name != host)
        site.api(sa.update(group_slots).where(group_slots.c.instance_uuid == uuid).values(host=other))
        assert set(site.auditor.kinds()) == {(slots.STRAY, uuid), (slots.MISSING, uuid)}
        assert site.auditor.repair() == []
        assert self.slots(site, uuid) == [(host, False)]

    def test_a_second_slot_is_removed(self, site: Ground) -> None:
        uuid, group, host = self.member(site)
        other = next(name for name in ("a1", "a2", "a3") if name != host)
        site.api(sa.insert(group_slots), {"group_uuid": group.uuid, "instance_uuid": uuid, "host": other, "held": False})
        repaired(site, slots.STRAY, uuid)
        assert self.slots(site, uuid) == [(host, False)]

    def test_a_slot_that_is_missing_is_made(self, site: Ground) -> None:
        uuid, _, host = self.member(site)
        site.api(sa.delete(group_slots).where(group_slots.c.instance_uuid == uuid))
        repaired(site, slots.MISSING, uuid)
        assert self.slots(site, uuid) == [(host, False)]

    def test_a_recreated_slot_has_its_fault_domain(self, site: Ground) -> None:
        uuid, _, _ = self.member(site)
        [mapping] = site.read(sa.select(instance_mappings).where(instance_mappings.c.instance_uuid == uuid))
        of_batch = request_specs.c.batch_id == mapping["batch_id"]
        [row] = site.read(sa.select(request_specs).where(of_batch))
        spec = msgspec.structs.replace(stored.load_text(row["spec"], RequestSpec), scheduler_hints={"fault_domain": ("east",)})
        site.api(sa.update(request_specs).where(of_batch).values(spec=stored.dump_value(spec)))
        for statement in (sa.delete(group_slots), sa.update(group_slots).values(host="a9")):
            site.api(statement.where(group_slots.c.instance_uuid == uuid))
            assert site.auditor.repair() == []
            found = site.read(sa.select(group_slots).where(group_slots.c.instance_uuid == uuid))
            assert [row["fault_domain"] for row in found] == ["east"]

    def test_a_slot_of_a_finished_build_is_freed(self, site: Ground) -> None:
        uuid, group, host = self.member(site)
        other = next(name for name in ("a1", "a2", "a3") if name != host)
        site.api(sa.insert(group_slots), {"group_uuid": group.uuid, "instance_uuid": uuid, "host": other, "held": True})
        repaired(site, slots.HELD, uuid)
        assert self.slots(site, uuid) == [(host, False)]

    def test_slots_of_a_build_under_way_stay(self, site: Ground) -> None:
        group = ServerGroup(uuid=str(uuids.uuid4()), name=str(uuids.uuid4()), project_id="p", policy=GroupPolicy.ANTI_AFFINITY)
        site.cloud.api.write(server_groups.create, group)
        [uuid] = site.ordered(group=group)
        applying.build(site.cloud, [uuid], active=False)
        site.keep()
        assert len(self.slots(site, uuid)) > 1, "alternates are held"
        assert site.auditor.kinds() == []
        site.cloud.databases["cell1"].write(instances.transition_rows, [uuid], _active, 1.0)
        site.keep()


def _active(row: Instance) -> lifecycle.Outcome:
    return lifecycle.confirm_active(row, row.host or "", row.fence, row.attempt, row.builder or "", 1.0)


class TestHosts:
    def test_a_host_without_mapping_is_mapped(self, site: Ground) -> None:
        site.cloud.api.write(host_mappings.delete, "a3")
        assert site.auditor.kinds() == [(hosts.UNMAPPED, "a3")]
        assert site.auditor.repair() == []
        assert site.cloud.api.read(host_mappings.cell_uuid_by_host)["a3"] == site.uuid_of("cell1")

    def test_a_host_in_two_cells_is_told(self, site: Ground) -> None:
        site.cloud.databases["cell2"].write(
            services.record_heartbeats, [services.Beat(host="a1", binary=AGENT_BINARY)], time.time()
        )
        assert site.auditor.kinds() == [(hosts.CONFLICT, "a1")]
        assert site.auditor.repair() == [(hosts.CONFLICT, "a1")]
        site.cell("cell2", sa.delete(service_table).where(service_table.c.host == "a1"))

    def test_a_host_that_reports_elsewhere_is_told(self, site: Ground) -> None:
        [mapping] = site.read(sa.select(host_table).where(host_table.c.host == "b1"))
        site.api(sa.update(host_table).where(host_table.c.host == "b1").values(cell_uuid=site.uuid_of("cell1")))
        assert (hosts.ELSEWHERE, "b1") in site.auditor.kinds()
        site.api(sa.update(host_table).where(host_table.c.host == "b1").values(cell_uuid="nowhere"))
        assert (hosts.NO_CELL, "b1") in site.auditor.kinds()
        site.api(sa.update(host_table).where(host_table.c.host == "b1").values(cell_uuid=mapping["cell_uuid"]))

    def test_a_mapped_host_unknown_in_cell_is_reported(self, site: Ground) -> None:
        site.cloud.api.write(host_mappings.add_mappings, [HostMapping(host="ghost", cell_uuid=site.uuid_of("cell1"))], 1.0)
        assert site.auditor.repair() == [(hosts.UNHEARD, "ghost")]
        site.cloud.api.write(host_mappings.delete, "ghost")

    def test_a_node_without_agent_is_told(self, site: Ground) -> None:
        node = fleet.node("lonely")
        site.cloud.databases["cell2"].write(compute_nodes.store_node, node, 1.0)
        site.keep()
        assert site.auditor.repair() == [(hosts.NO_AGENT, "lonely")]
        site.cell("cell2", sa.delete(node_table).where(node_table.c.host == "lonely"))

    def test_a_deviating_inventory_is_copied_from_its_node(self, site: Ground) -> None:
        site.api(sa.update(inventories).where(inventories.c.host == "b1").values(cap_vcpus=1.0, cell_uuid="elsewhere"))
        repaired(site, hosts.OFFER, "b1")
        assert applying.inventories(site.cloud)["b1"].cell_uuid == site.uuid_of("cell2")
        site.api(sa.delete(inventories).where(inventories.c.host == "b1"))
        repaired(site, hosts.OFFER, "b1")


class TestGuests:
    @pytest.fixture
    def auditor(self, site: Ground) -> Auditor:
        """For whom what happened a minute ago is at rest. Guests of the other tests are played, and reported by nobody."""
        auditor = Auditor(site.conductor, overdue=60.0, guests=True)
        auditor.before = set(flat(auditor.confirmed()))
        return auditor

    def at_rest(self, site: Ground, host: str, running: int) -> int:
        """Its agent reports so many guests; returns how many rows are ACTIVE there."""
        site.cell("cell1", sa.update(instance_table).where(instance_table.c.host == host).values(updated_at=LONG_AGO))
        site.cloud.databases["cell1"].write(
            services.record_heartbeats, [services.Beat(host=host, binary=AGENT_BINARY)], time.time()
        )
        applying.tell(site.cloud, "cell1", applying.node(host, running_vms=running))
        site.keep()
        return sum(row.instance.state is State.ACTIVE and row.instance.host == host for row in site.cloud.evidence().rows)

    def test_guests_are_compared_with_rows(self, site: Ground, auditor: Auditor) -> None:
        [uuid] = site.active()
        host = site.cloud.row(uuid).host or ""
        active = self.at_rest(site, host, 0)
        assert (guests.MISSING, host) in auditor.kinds()
        self.at_rest(site, host, active)
        assert [key for _, key in auditor.kinds() if key == host] == []
        self.at_rest(site, host, active + 2)
        assert auditor.repair() == [(guests.UNKNOWN, host)], "it is for the agent to decide"
        site.cell("cell1", sa.update(instance_table).where(instance_table.c.uuid == uuid).values(updated_at=time.time()))
        assert auditor.kinds() == [], "what has just changed was not reported yet"
        self.at_rest(site, host, active)

    def test_an_agent_that_is_silent_says_nothing(self, site: Ground, auditor: Auditor) -> None:
        self.at_rest(site, "a3", 7)
        site.cell("cell1", sa.update(service_table).where(service_table.c.host == "a3").values(last_seen=LONG_AGO))
        assert auditor.kinds() == []
        self.at_rest(site, "a3", 0)


class TestLeftBehind:
    def test_a_finished_batchs_queued_secrets_are_erased(self, site: Ground) -> None:
        batch = str(uuids.uuid4())
        site.cloud.api.write(kept.keep_requests, {batch: "sealed"}, time.time())
        assert Auditor(site.conductor, overdue=60.0).kinds() == []
        repaired(site, secrets.KEPT_SECRETS, batch)
        assert site.cloud.api.read(kept.of_request, batch) is None

    def test_a_finished_batchs_secrets_in_cells_are_erased(self, site: Ground) -> None:
        batch = str(uuids.uuid4())
        site.cloud.databases["cell1"].write(kept.keep_builds, {batch: "sealed"}, time.time())
        repaired(site, secrets.KEPT_SECRETS, batch)
        assert site.read(sa.select(build_secrets), "cell1") == []

    def test_a_build_past_its_deadline_is_ended(self, site: Ground) -> None:
        [uuid] = site.ordered()
        site.keep()
        assert site.auditor.kinds() == []
        site.cell("cell1", sa.update(build_table).where(build_table.c.instance_uuid == uuid).values(deadline=LONG_AGO))
        repaired(site, late.LATE, uuid)
        assert (site.cloud.row(uuid).state, site.cloud.mapped(uuid).state) == (State.ERROR, "error")
        assert uuid not in site.cloud.evidence().claims

    def test_a_feed_that_nobody_applies_is_applied(self, site: Ground) -> None:
        uuids_ = site.ordered(2)
        applying.build(site.cloud, uuids_)
        assert (feeds.BEHIND, site.uuid_of("cell1")) in site.auditor.kinds()
        assert site.auditor.repair() == []
        assert applying.states(site.cloud, uuids_) == ["active", "active"]

    def test_a_feed_set_back_is_rebuilt_from_rows(self, site: Ground) -> None:
        site.active()
        mine = feed_cursors.c.cell_uuid == site.uuid_of("cell1")
        site.api(sa.update(feed_cursors).where(mine).values(sequence=10**6))
        repaired(site, feeds.AHEAD, site.uuid_of("cell1"))

    def test_unread_rows_of_a_restored_database_are_read(self, site: Ground) -> None:
        site.active()
        cell = site.uuid_of("cell1")
        site.cloud.api.write(events.rebuild_from_rows, cell)
        [finding] = site.auditor.findings()
        assert (finding.kind, finding.key) == (feeds.BEHIND, cell)
        assert "restored" in finding.what
        repaired(site, feeds.BEHIND, cell)


def test_an_unreachable_cell_is_named_and_not_judged(site: Ground) -> None:
    [here] = site.active()
    site.cell("cell1", sa.delete(instance_table).where(instance_table.c.uuid == here))
    stray = str(uuids.uuid4())
    claim = site.read(sa.select(allocations).where(allocation(here)))[0]
    site.api(sa.insert(allocations), claim | {"instance_uuid": stray})
    site.cloud.keeper.ledger.write(_recount_all)
    found = site.auditor.confirmed()
    assert (servers.ROWLESS, here) in [(f.kind, f.key) for f in flat(found)]
    with away(site.conductor.databases["cell1"]):
        assert site.auditor.kinds() == [(claims.ORPHAN, stray)]
        assert list(site.auditor.places.unknown) == [site.uuid_of("cell1")]
        assert "cannot be used" in site.auditor.places.unknown[site.uuid_of("cell1")]
        left = flat(site.auditor.audit.repair_findings(found))
        assert (servers.ROWLESS, here) in [(f.kind, f.key) for f in left], "what cannot be looked at is not repaired"
    site.auditor.repair()
    assert site.cloud.row(here).state is State.ERROR


def _recount_all(tx: ApiTransaction, stamp: ledger.Stamp) -> None:
    claim_repair.recount_usage(tx, stamp, [row.id for row in tx.execute(sa.select(inventories.c.id))])
