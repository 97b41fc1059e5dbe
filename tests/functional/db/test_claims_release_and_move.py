"""Giving room back, moving it, and what happens to groups then."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa

from db.api.claims import claims
from db.api.deployment import host_mappings, host_removal
from db.api.queue import builds
from db.api.rows.tables import allocations, build_requests, instance_mappings
from db.sql.connection import Connection
from db.sql.engine import Database
from objects.cell import CELL0_UUID, HostMapping
from objects.group import GroupPolicy
from tests.support import fleet
from tests.support.fleet import CELLS, CONTEXT, Site


@pytest.fixture
def site(database: Database) -> Site:
    return Site.anew(database, [fleet.node(f"h{n}") for n in range(8)])


def claim(site: Site, count: int = 1, **asked: Any) -> list[str]:
    leased = site.leased(fleet.spec(fleet.flavor(2, 2048, 5), **asked), count)
    site.scheduler().select_destinations(CONTEXT, leased, list(leased.fences))
    return list(leased.fences)


def test_room_comes_back_once(site: Site) -> None:
    uuids = claim(site, 5)
    assert site.ledger.write(claims.release_claims, uuids[:3]) == 3
    assert site.ledger.write(claims.release_claims, uuids) == 2
    assert site.ledger.write(claims.release_claims, [*uuids, "unknown"]) == 0
    assert site.claimed() == {}
    assert site.overfull() == []
    assert all(row.used_memory_mb == row.instances == 0 for row in site.inventories().values())


def test_releasing_nothing_is_nothing(site: Site) -> None:
    before = site.inventories()
    assert site.ledger.write(claims.release_claims, []) == 0
    assert site.ledger.write(claims.release_claims, ["unknown"]) == 0
    assert site.inventories() == before


def test_a_released_instance_leaves_group_and_held_slots(site: Site) -> None:
    [uuid] = claim(site, group=fleet.group(GroupPolicy.ANTI_AFFINITY))
    assert [slot.held for slot in site.slots()] == [False, True, True]
    site.ledger.write(claims.release_claims, [uuid])
    assert site.slots() == []


def test_held_slots_end_with_the_build(site: Site) -> None:
    uuids = claim(site, 2, group=fleet.group(GroupPolicy.ANTI_AFFINITY), max_attempts=2)
    assert len(site.slots()) == 4
    site.database.write(claims.free_slots, uuids[:1])
    assert [s.held for s in site.slots() if s.instance_uuid == uuids[0]] == [False]
    assert [s.held for s in site.slots() if s.instance_uuid == uuids[1]] == [False, True]


def test_a_move_takes_the_claim_along(site: Site) -> None:
    [uuid] = claim(site)
    old = site.claimed()[uuid]
    new = next(host for host in site.inventories() if host != old)
    site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=uuid, host=new, node=new)])
    assert site.claimed() == {uuid: new}
    assert site.overfull() == []
    assert (site.inventories()[old].used_vcpus, site.inventories()[new].used_vcpus) == (0, 2)


def test_moving_twice_or_without_a_claim_changes_nothing(site: Site) -> None:
    [uuid] = claim(site)
    new = next(host for host in site.inventories() if host != site.claimed()[uuid])
    moves = [
        claims.ClaimMove(instance_uuid=uuid, host=new, node=new),
        claims.ClaimMove(instance_uuid="unknown", host=new, node=new),
    ]
    site.ledger.write(claims.move_claims, moves)
    before = site.inventories()
    site.ledger.write(claims.move_claims, moves)
    assert site.inventories() == before


def test_a_move_to_a_full_host_is_recorded(site: Site) -> None:
    target = "h0"
    uuids = [claim(site, force_hosts=(f"h{n}",))[0] for n in range(1, 6)]
    many = claim(site, 8, force_hosts=(target,))  # 16 of 16 vCPUs
    site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=uuid, host=target, node=target) for uuid in uuids])
    assert site.overfull() == [target]
    assert site.inventories()[target].used_vcpus == 26
    answer = site.boot(site.scheduler(), fleet.spec(fleet.flavor(1, 1, 1), ignore_hosts=()), 10)
    assert target not in {selections[0].host for selections in answer}
    site.ledger.write(claims.release_claims, [*uuids, *many])
    assert site.inventories()[target].used_vcpus == 0


def test_a_move_to_a_host_without_inventory_counts(site: Site) -> None:
    [uuid] = claim(site)
    cell = site.inventories()[site.claimed()[uuid]].cell_uuid
    site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=uuid, host="newcomer", node="n1")])
    row = site.inventories()["newcomer"]
    assert (row.node, row.cell_uuid, row.used_vcpus, row.cap_vcpus, row.instances) == ("n1", cell, 2, 0.0, 1)
    site.ledger.write(claims.set_inventory, [fleet.node("newcomer", node="n1")], cell)
    row = site.inventories()["newcomer"]
    assert (row.cap_vcpus, row.used_vcpus) == (16.0, 2)
    assert site.overfull() == []


def test_a_moved_member_moves_in_its_group_too(site: Site) -> None:
    [uuid] = claim(site, group=fleet.group(GroupPolicy.ANTI_AFFINITY))
    held = [slot.host for slot in site.slots() if slot.held]
    site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=uuid, host=held[0], node=held[0])])
    assert [(slot.host, slot.held) for slot in site.slots()] == [(held[0], False), (held[1], True)]
    site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=uuid, host="h9", node="h9")])
    assert [(slot.host, slot.held) for slot in site.slots()] == [("h9", False), (held[1], True)]


def test_a_moved_member_stays_in_its_fault_domain(site: Site) -> None:
    racks = fleet.racks(a=list(site.homes))
    asked = fleet.spec(group=fleet.group(GroupPolicy.SOFT_AFFINITY), scheduler_hints={"fault_domain": ("east",)})
    [[selection]] = site.boot(site.scheduler(aggregates=racks), asked)
    [uuid] = site.claimed()
    assert [(slot.host, slot.fault_domain) for slot in site.slots()] == [(selection.host, "east")]
    site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=uuid, host="h9", node="h9")])
    assert [(slot.host, slot.fault_domain) for slot in site.slots()] == [("h9", "east")]


class TestInventory:
    def test_capacity_is_total_minus_reserved_times_ratio(self, site: Site) -> None:
        changes = {"vcpus": 8, "cpu_allocation_ratio": 4.0, "reserved_memory_mb": 512, "reserved_disk_gb": 10}
        site.ledger.write(claims.set_inventory, [fleet.node("new", memory_mb=1024, ram_allocation_ratio=1.5, **changes)], CELLS[1])
        row = site.inventories()["new"]
        assert (row.cap_vcpus, row.cap_memory_mb, row.cap_disk_gb, row.cell_uuid) == (32.0, 768.0, 990.0, CELLS[1])

    def test_a_change_is_followed_without_touching_usage(self, site: Site) -> None:
        [uuid] = claim(site)
        host = site.claimed()[uuid]
        before = site.inventories()[host]
        site.ledger.write(claims.set_inventory, [fleet.node(host, vcpus=32)], before.cell_uuid)
        after = site.inventories()[host]
        assert (after.id, after.cap_vcpus, after.used_vcpus) == (before.id, 32.0, 2)
        assert after.generation == before.generation + 1

    def test_nothing_is_written_where_nothing_changed(self, site: Site) -> None:
        before = site.inventories()
        own = [node for node in site.nodes if site.homes[node.host] == CELLS[0]]
        site.ledger.write(claims.set_inventory, own, CELLS[0])
        assert site.inventories() == before

    def test_a_host_may_be_handed_to_another_cell(self, site: Site) -> None:
        site.ledger.write(claims.set_inventory, [fleet.node("h0")], CELLS[1])
        assert site.inventories()["h0"].cell_uuid == CELLS[1]


class TestOrphans:
    def decide(self, site: Site, uuid: str, **values: object) -> None:
        def write(tx: Connection) -> None:
            tx.execute(sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == uuid).values(**values))

        site.database.write(write)

    def test_only_claims_without_any_basis_are_released(self, site: Site) -> None:
        uuids = claim(site, 7)
        queued, live, cell0, failed, ended, deleted, unmapped = uuids
        for uuid in uuids[1:]:
            site.database.write(_drop_request, uuid)
        self.decide(site, live, cell_uuid=CELLS[0], state="active", deleted=True)  # its guest is still there
        self.decide(site, cell0, cell_uuid=CELL0_UUID, state="building")
        self.decide(site, failed, cell_uuid=CELLS[0], state="error")
        self.decide(site, ended, cell_uuid=CELLS[0], state="deleted", deleted=True)
        self.decide(site, deleted, deleted=True)
        site.database.write(_drop_mapping, unmapped)
        assert set(site.database.read(claims.list_orphans)) == {cell0, failed, ended, deleted, unmapped}
        assert site.ledger.write(claims.release_claims, site.database.read(claims.list_orphans)) == 5
        assert site.claimed().keys() == {queued, live}

    def test_a_delete_before_hand_over_frees_the_claim(self, site: Site) -> None:
        [uuid] = claim(site)
        site.ledger.write(builds.delete, uuid, project_id=None, now=time.time())
        assert site.claimed() == {}
        assert site.overfull() == []


def _drop_request(tx: Connection, uuid: str) -> None:
    tx.execute(sa.delete(build_requests).where(build_requests.c.instance_uuid == uuid))


def _lose_inventory(tx: Connection, uuids: list[str]) -> None:
    tx.execute(sa.update(allocations).where(allocations.c.instance_uuid.in_(uuids)).values(inventory_id=10**6))


def test_claims_on_a_deleted_inventory_release_and_move(site: Site) -> None:
    """No protocol leaves such claims; one that is there all the same must not stop the feed of its cell."""
    lost, sound, moving = claim(site), claim(site), claim(site)
    new = next(host for host in site.inventories() if host not in site.claimed().values())
    site.database.write(_lose_inventory, lost + moving)
    site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=uuid, host=new, node=new) for uuid in moving])
    assert site.claimed()[moving[0]] == new
    assert site.inventories()[new].used_vcpus == 2
    assert site.ledger.write(claims.release_claims, lost + sound) == 2
    assert set(site.claimed()) == set(moving)


def _drop_mapping(tx: Connection, uuid: str) -> None:
    tx.execute(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid == uuid))


def test_a_move_is_recorded_despite_its_hosts_deletion(site: Site) -> None:
    """Otherwise the claim would stand on an inventory that is not there, and no host would count it."""
    if site.database.dialect == "sqlite":
        pytest.skip("has one writer at a time")
    [uuid] = claim(site)
    [home] = site.claimed().values()
    target = next(host for host in site.inventories() if host != home)
    site.database.write(host_mappings.add_mappings, [HostMapping(host=target, cell_uuid=CELLS[0])], 0.0)
    deleted: list[str] = []

    def overtake(tx: object, cursor: object, statement: str, *rest: object) -> None:
        if "FROM inventories" in statement and "FOR UPDATE" in statement and not deleted:
            deleted.append(target)
            operator = threading.Thread(target=site.database.write, args=(host_removal.from_api, target))
            operator.start()
            operator.join()

    sa.event.listen(sa.Engine, "before_cursor_execute", overtake)
    try:
        site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=uuid, host=target, node=target)])
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", overtake)
    assert deleted == [target]
    assert site.claimed() == {uuid: target}
    assert site.inventories()[target].used_vcpus == 2
