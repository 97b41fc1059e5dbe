"""Servers that only their cell knows, as after a restore of the API database, get back all that was lost of them."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from cells.instance_mapping import adopt_rows, map_instances
from conductor.audit import rows, servers
from conductor.audit import usage as usage_check
from db.api.claims import claims
from db.api.claims.claims import Ledger
from db.api.rows.ledger import Stamp
from db.api.rows.tables import allocations, build_requests, instance_mappings, quotas, request_specs
from db.cell import instances
from db.cell.tables import builds
from db.sql.connection import ApiTransaction
from objects.instance import State
from tests.support import applying, fleet
from tests.support.auditing import Ground
from tests.support.ground import GROUNDS
from tests.support.world import world_fixture

pytestmark = pytest.mark.one_in(2)

SMALL = fleet.flavor(vcpus=2, memory_mb=512, root_gb=1)


site = world_fixture(grounds=GROUNDS, of=Ground)


def charged(site: Ground) -> list[tuple[int, int, int]]:
    return [(row["used_instances"], row["used_cores"], row["used_ram"]) for row in site.read(sa.select(quotas))]


def used(site: Ground) -> dict[str, tuple[float, int]]:
    return {host: (row.used_vcpus, row.instances) for host, row in applying.inventories(site.cloud).items()}


def shown_fault(site: Ground, uuid: str) -> str | None:
    """What a list says of it."""
    fault: str | None = site.read(sa.select(instance_mappings.c.fault).where(instance_mappings.c.instance_uuid == uuid))[0]["fault"]
    return fault


def _without_mapping(tx: ApiTransaction, stamp: Stamp, uuids: list[str]) -> None:
    """As if they had been accepted after the backup: nothing here knows of them."""
    claims.release_claims(tx, stamp, uuids)
    batches = (
        tx.execute(sa.select(instance_mappings.c.batch_id).where(instance_mappings.c.instance_uuid.in_(uuids))).scalars().all()
    )
    tx.execute(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid.in_(uuids)))
    tx.execute(sa.delete(request_specs).where(request_specs.c.batch_id.in_(batches)))
    tx.execute(sa.delete(quotas))


def _queued(tx: ApiTransaction, stamp: Stamp, uuids: list[str]) -> None:
    """As if they had waited in the queue when the backup was taken."""
    claims.release_claims(tx, stamp, uuids)
    for uuid in uuids:
        here = instance_mappings.c.instance_uuid == uuid
        batch = tx.execute(sa.select(instance_mappings.c.batch_id).where(here)).scalar_one()
        blank: dict[str, Any] = {"cell_uuid": None, "fence": 0, "seen": 0, "state": "building", "host": None, "node": None}
        tx.execute(sa.update(instance_mappings).where(here).values(blank))
        request = {"instance_uuid": uuid, "batch_id": batch, "state": "queued", "deadline": 1e12, "created_at": 1.0}
        tx.execute(sa.insert(build_requests), request | {"lease_until": 0.0, "fence": 0, "priority": 0})


LOST = pytest.mark.parametrize("lose", [_without_mapping, _queued], ids=["accepted-after", "queued-in"])


@LOST
def test_one_repair_puts_everything_back(site: Ground, lose: Any) -> None:
    uuids = site.active(2, flavor=SMALL)
    before = charged(site), used(site), site.cloud.evidence().claims
    site.cloud.keeper.ledger.write(lose, uuids)
    kind = rows.UNMAPPED if lose is _without_mapping else rows.UNDECIDED
    assert {found for found in site.auditor.kinds() if found[0] == kind} == {(kind, uuid) for uuid in uuids}
    assert site.auditor.repair() == []
    assert (charged(site), used(site), site.cloud.evidence().claims) == before
    assert [site.cloud.mapped(uuid).state for uuid in uuids] == ["active", "active"]
    assert site.cloud.requests() == {}
    assert site.auditor.kinds() == []


@LOST
def test_a_command_puts_the_same_back(site: Ground, lose: Any) -> None:
    uuids = site.active(2, flavor=SMALL)
    before = charged(site), used(site), site.cloud.evidence().claims
    site.cloud.keeper.ledger.write(lose, uuids)
    done = map_instances(site.conductor.registry, Ledger(site.cloud.api, "test"), site.conductor.cell("cell1"))
    assert (done.mapped, done.refused, done.more) == (2, (), False)
    site.keep()
    assert (charged(site), used(site), site.cloud.evidence().claims) == before
    assert site.auditor.kinds() == []


@LOST
def test_a_failed_server_keeps_its_fault_without_claims(site: Ground, lose: Any) -> None:
    [uuid] = site.ordered(flavor=SMALL)
    applying.build(site.cloud, [uuid], active=False)
    applying.late(site.cloud, uuid)
    site.keep()
    fault, before = shown_fault(site, uuid), charged(site)
    site.cloud.keeper.ledger.write(lose, [uuid])
    assert site.auditor.repair() == []
    assert site.cloud.mapped(uuid).state == "error"
    assert shown_fault(site, uuid) == fault
    assert fault
    assert charged(site) == before
    assert uuid not in site.cloud.evidence().claims
    assert site.auditor.kinds() == []


def test_servers_deleted_after_the_backup_are_deleted_again(site: Ground) -> None:
    """Also what the agent has still to end."""
    gone, going = site.active(2, flavor=SMALL)
    site.cloud.databases["cell1"].write(instances.delete, [gone, going], 5.0)
    applying.gone(site.cloud, gone)
    site.cloud.keeper.ledger.write(_queued, [gone, going])
    adopted = adopt_rows(Ledger(site.cloud.api, "test"), site.conductor.cell("cell1"), [gone, going])
    assert sorted(adopted) == sorted([gone, going])
    assert charged(site) == [(0, 0, 0)]
    assert site.cloud.requests() == {}
    assert {server.uuid for server in site.cloud.evidence().servers if not server.deleted} == set()
    site.conductor.deleter.run_round()
    applying.gone(site.cloud, going)
    site.keep()
    site.conductor.deleter.run_round()
    assert [site.cloud.mapped(uuid).state for uuid in (gone, going)] == ["deleted", "deleted"]


def test_an_unrequested_deleted_server_stays_unknown(site: Ground) -> None:
    [uuid] = site.active()
    site.cloud.databases["cell1"].write(instances.delete, [uuid], 5.0)
    applying.gone(site.cloud, uuid)
    site.cloud.keeper.ledger.write(_without_mapping, [uuid])
    assert adopt_rows(Ledger(site.cloud.api, "test"), site.conductor.cell("cell1"), [uuid]) == []


def test_what_is_decided_elsewhere_stays_there(site: Ground) -> None:
    [uuid] = site.active()
    here = instance_mappings.c.instance_uuid == uuid
    site.api(sa.update(instance_mappings).where(here).values(cell_uuid=site.uuid_of("cell2")))
    assert adopt_rows(Ledger(site.cloud.api, "test"), site.conductor.cell("cell1"), [uuid]) == []
    site.api(sa.update(instance_mappings).where(here).values(cell_uuid=None, deleted=True))
    assert adopt_rows(Ledger(site.cloud.api, "test"), site.conductor.cell("cell1"), [uuid]) == []


def test_a_staged_copy_is_not_adopted(site: Ground) -> None:
    driven = site.conductor.drive(site.cloud.accept(), upto="staged")
    [uuid] = driven.uuids
    for cell in ("cell1", "cell2"):
        assert adopt_rows(Ledger(site.cloud.api, "test"), site.conductor.cell(cell), [uuid]) == []
    assert driven.hand_over() == [uuid]


def test_a_skipped_repair_is_not_called_done(site: Ground) -> None:
    """A server whose spec is lost everywhere cannot be claimed for."""
    [uuid] = site.active()
    site.cloud.keeper.ledger.write(_without_mapping, [uuid])
    site.cell("cell1", sa.delete(builds).where(builds.c.instance_uuid == uuid))
    site.auditor.repair()
    assert site.cloud.mapped(uuid).state == "active"
    assert (servers.UNCLAIMED, uuid) in site.auditor.kinds()
    assert (servers.UNCLAIMED, uuid) in site.auditor.repair()


def test_a_claim_on_another_host_follows_the_row(site: Ground) -> None:
    """The backup holds the claim of a Selection that the server has left since."""
    [uuid] = site.active(flavor=SMALL)
    before = used(site)
    host = site.cloud.row(uuid).host
    other = next(name for name in ("a1", "a2") if name != host)
    claim = site.read(sa.select(allocations))[0]
    site.cloud.keeper.ledger.write(_queued, [uuid])
    places = {row.host: row.id for row in applying.inventories(site.cloud).values()}
    site.api(sa.insert(allocations), claim | {"inventory_id": places[other]})
    site.auditor.repair()
    assert site.auditor.repair() == []
    assert used(site) == before
    assert site.cloud.row(uuid).state is State.ACTIVE
    assert (usage_check.MISCOUNTED, uuid) not in site.auditor.kinds()
