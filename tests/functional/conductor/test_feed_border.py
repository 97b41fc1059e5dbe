"""A cell speaks of its own hosts and instances only, whatever is in its database: see ``docs/security.md``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from conductor.apply import Applier
from conductor.audit import servers
from conductor.audit.places import Places
from db import dead_letters
from db.api.claims import claim_repair, claims
from db.api.deployment import host_mappings
from db.cell import compute_nodes, feed, instances
from db.cell.tables import instances as instance_rows
from db.sql.connection import Connection
from objects import stored
from objects.amounts import Amounts
from objects.cell import HostMapping
from objects.feed import EventKind, InstanceSummary
from objects.selection import Selection
from service import metrics
from tests.support.applying import CELL, OTHER, build, catch_up, inventories, node, ordered, sound, tell
from tests.support.conductor_process import Conductor
from tests.support.ground import USUAL
from tests.support.world import World, world

FOREIGN = "b1"
"""A host of the other cell."""
BARE = "b2"
"""Another one, mapped there, that has not told what it offers."""
LATER = 10**6
"""A version that is newer than all that a row has had."""


@pytest.fixture(params=USUAL)
def cloud(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    with world(tmp_path, {CELL: ["a1", "a2"], OTHER: [FOREIGN]}, request.param, embedded=True) as made:
        home = made.keeper.cell(OTHER).uuid
        made.api.write(host_mappings.add_mappings, [HostMapping(host=BARE, cell_uuid=home)], time.time())
        yield made


@pytest.fixture
def applier(conductor: Conductor) -> Applier:
    made = Applier(conductor.ledger, conductor.cell(CELL))
    made.map_hosts(conductor.registry.hosts_of(conductor.cell(CELL).uuid))
    catch_up(made)
    return made


def forge(cloud: World, kind: EventKind, uuid: str, host: str, state: str = "active") -> None:
    """An event that somebody who holds the cell's database puts into its feed."""
    payload = stored.dump_value(InstanceSummary(state=state, host=host, node=host, updated_at=time.time()))
    event = feed.NewEvent(kind=kind, key=uuid, version=LATER, payload=payload)
    cloud.databases[CELL].write(feed.append_events, [event], time.time())


def refusals() -> float:
    return float(metrics.FEED_REFUSED.labels(CELL)._value.get())


@pytest.mark.parametrize("host", [FOREIGN, BARE])
@pytest.mark.parametrize("kind", [EventKind.MOVED, EventKind.ACTIVE])
def test_placing_on_another_cells_host_changes_nothing(
    cloud: World, conductor: Conductor, applier: Applier, kind: EventKind, host: str
) -> None:
    uuid, neighbour = ordered(cloud, conductor, 2)
    build(cloud, [uuid])
    catch_up(applier)
    before, usage, counted = cloud.mapped(uuid), inventories(cloud), refusals()
    forge(cloud, kind, uuid, host)
    build(cloud, [neighbour])
    catch_up(applier)
    assert cloud.mapped(uuid) == before
    assert inventories(cloud) == usage
    assert refusals() == counted + 1
    letters = cloud.api.read(dead_letters.list_all, "api")
    assert [(letter.step, letter.key) for letter in letters] == [("feed", uuid)]
    assert f"on host {host}, which is mapped to another cell" in letters[0].reason
    assert cloud.mapped(neighbour).state == "active", "its neighbours in the page are applied"


def test_an_instances_end_counts_whichever_host_it_names(cloud: World, conductor: Conductor, applier: Applier) -> None:
    [uuid] = ordered(cloud, conductor, 1)
    build(cloud, [uuid])
    forge(cloud, EventKind.ENDED, uuid, FOREIGN, "error")
    catch_up(applier)
    assert cloud.mapped(uuid).state == "error"
    assert cloud.evidence().claims == {}
    assert sound(cloud)


@pytest.mark.parametrize("kind", [EventKind.MOVED, EventKind.ACTIVE, EventKind.ENDED])
def test_events_of_another_cells_instance_change_nothing(
    cloud: World, conductor: Conductor, applier: Applier, kind: EventKind
) -> None:
    driven = conductor.lease(cloud.accept(1).batch_id)
    driven.claim(excluded_cells=(conductor.cell(CELL).uuid,))
    driven.stage()
    [uuid] = driven.hand_over()
    before, usage = cloud.mapped(uuid), inventories(cloud)
    forge(cloud, kind, uuid, "a1", "error")
    catch_up(applier)
    assert cloud.mapped(uuid) == before
    assert inventories(cloud) == usage


def test_an_audit_reports_rows_on_another_cells_host(cloud: World, conductor: Conductor, applier: Applier) -> None:
    [uuid] = ordered(cloud, conductor, 1)
    build(cloud, [uuid])
    catch_up(applier)
    before, usage = cloud.mapped(uuid), inventories(cloud)

    def lie(tx: Connection) -> None:
        values = {"host": FOREIGN, "node": FOREIGN, "version": LATER}
        tx.execute(sa.update(instance_rows).where(instance_rows.c.uuid == uuid).values(values))

    cloud.databases[CELL].write(lie)
    places = Places(cloud.api, conductor.ledger, conductor.registry, overdue=60.0)
    places.begin_check()
    found = [finding for page in servers.list_pages(places) for finding in servers.find_inconsistent(places, page)]
    assert [(finding.kind, finding.key, finding.repair) for finding in found] == [(servers.FOREIGN, uuid, None)]
    cloud.set_back(conductor.cell(CELL).uuid)
    cloud.trim_feeds()
    again = Applier(conductor.ledger, conductor.cell(CELL))
    catch_up(again)
    assert cloud.mapped(uuid).host == before.host
    assert inventories(cloud) == usage


def test_stats_of_another_cells_host_change_nothing(cloud: World, conductor: Conductor, applier: Applier) -> None:
    before = inventories(cloud)
    tell(cloud, CELL, node(FOREIGN, vcpus=0), node(BARE, vcpus=9))
    catch_up(applier)
    assert inventories(cloud) == before


def test_a_host_that_another_cell_has_stays_there(cloud: World, conductor: Conductor) -> None:
    home = cloud.api.read(host_mappings.cell_uuid_by_host)[FOREIGN]
    taken = cloud.api.write(
        host_mappings.add_mappings, [HostMapping(host=FOREIGN, cell_uuid=conductor.cell(CELL).uuid)], time.time()
    )
    assert [mapping.cell_uuid for mapping in taken] == [home]
    assert cloud.api.read(host_mappings.cell_uuid_by_host)[FOREIGN] == home


def test_no_repair_claims_on_another_cells_host(cloud: World, conductor: Conductor, applier: Applier) -> None:
    [uuid] = ordered(cloud, conductor, 1)
    build(cloud, [uuid])
    catch_up(applier)
    conductor.ledger.write(claims.release_claims, [uuid])
    usage = inventories(cloud)
    mapped = cloud.mapped(uuid)
    place = Selection(host=FOREIGN, node=FOREIGN, cell_uuid=conductor.cell(CELL).uuid, fence=1)
    lost = claim_repair.Unclaimed(
        instance_uuid=uuid, seen=mapped.seen, fence=1, takes=Amounts(vcpus=1, memory_mb=1, disk_gb=1), selection=place, group=None
    )
    assert not conductor.ledger.write(claim_repair.restore_claim, lost)
    assert inventories(cloud) == usage
    assert cloud.evidence().claims == {}
    assert cloud.databases[CELL].read(compute_nodes.list_known, ["a1"]) == {"a1"}
    assert cloud.databases[CELL].read(instances.get, uuid) is not None
