"""Guests whose records are lost: their agents tell the cell of them, and an operator adopts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from compute.journal import Journal
from compute.simulated import journal_path
from conductor.adopt_guest import Owner, adopt
from conductor.audit import servers
from conductor.audit.places import Places
from db.api import claims
from db.api.ledger import Stamp
from db.api.tables import instance_mappings, quotas, request_specs
from db.cell import unknown_guests
from db.cell.tables import builds as build_table
from db.cell.tables import instances as instance_table
from db.sql.connection import ApiTransaction, Connection
from objects import errors
from objects.instance import State
from service.periodic import wait_until
from tests.support import applying, fleet
from tests.support.auditing import Auditor
from tests.support.commands import Shell
from tests.support.ground import GROUNDS
from tests.support.world import PATIENCE, World, world

SMALL = fleet.flavor(vcpus=2, memory_mb=512, root_gb=1)


class Region:
    """Two cells with real agents, and three servers that are ACTIVE in the first."""

    def __init__(self, cloud: World) -> None:
        self.cloud = cloud
        cloud.start()
        self.uuids = cloud.uuids(cloud.accept(3, flavor=SMALL, force_hosts=("a1",)))
        assert wait_until(lambda: {cloud.mapped(uuid).state for uuid in self.uuids} == {"active"}, PATIENCE)
        cloud.settle()
        self.conductor = cloud.conductor("operator")
        self.places = Places(self.conductor.database, self.conductor.ledger, self.conductor.registry, overdue=180.0)
        self.auditor = Auditor(self.conductor, overdue=3600.0, guests=True)
        self.before = self.account()

    def account(self) -> object:
        """What is charged and claimed, and where the guests are."""
        evidence = self.cloud.evidence()
        used = {host: (row.used_vcpus, row.instances) for host, row in applying.inventories(self.cloud).items()}
        columns = (quotas.c.project_id, quotas.c.used_instances, quotas.c.used_cores, quotas.c.used_ram)
        charged = self.cloud.api.read(lambda tx: [tuple(row) for row in tx.execute(sa.select(*columns))])
        return evidence.claims, used, charged, {host: sorted(found) for host, found in evidence.guests.items()}

    def lose_rows(self, uuids: Sequence[str]) -> None:
        self.cloud.databases["cell1"].write(_lose_rows, uuids)

    def lose_servers(self, uuids: Sequence[str]) -> None:
        self.cloud.keeper.ledger.write(_lose_servers, uuids)

    def unknown(self) -> dict[str, str]:
        """Reasons by uuid, as agents have told the cell."""
        found = self.cloud.databases["cell1"].read(unknown_guests.list_all)
        return {reported.guest.uuid: reported.guest.reason for reported in found}

    def wait_unknown(self, *uuids: str) -> None:
        assert wait_until(lambda: self.unknown().keys() == set(uuids), PATIENCE), self.unknown()

    def adopt(self, uuid: str, owner: Owner | None = None, host: str | None = None) -> None:
        self.places.begin()
        adopt(self.places, uuid, host, owner)

    def wait_consistent(self) -> None:
        assert wait_until(lambda: self.account() == self.before, PATIENCE), (self.account(), self.before)
        assert {self.cloud.mapped(uuid).state for uuid in self.uuids} == {"active"}
        self.wait_unknown()
        assert wait_until(lambda: self.auditor.kinds() == [], PATIENCE, pause=0.5), self.auditor.findings()
        assert self.destroyed() == []

    def destroyed(self) -> list[str]:
        return [entry.destroyed for entry in self.cloud.journal("a1") if entry.destroyed is not None]


def _lose_rows(tx: Connection, uuids: Sequence[str]) -> None:
    tx.execute(sa.delete(instance_table).where(instance_table.c.uuid.in_(uuids)))
    tx.execute(sa.delete(build_table).where(build_table.c.instance_uuid.in_(uuids)))


def _lose_servers(tx: ApiTransaction, stamp: Stamp, uuids: Sequence[str]) -> None:
    claims.release(tx, stamp, uuids)
    tx.execute(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid.in_(uuids)))
    tx.execute(sa.delete(request_specs))
    tx.execute(sa.delete(quotas))


@pytest.fixture(params=GROUNDS)
def region(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Region]:
    with world(tmp_path, {"cell1": ["a1", "a2"], "cell2": ["b1"]}, request.param, embedded=True) as cloud:
        yield Region(cloud)


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Region]:
    with world(tmp_path, {"cell1": ["a1", "a2"], "cell2": ["b1"]}) as cloud:
        yield Region(cloud)


def test_a_server_whose_row_is_lost_is_adopted_whole(region: Region) -> None:
    region.lose_rows(region.uuids)
    region.wait_unknown(*region.uuids)
    assert set(region.unknown().values()) == {"no record"}
    for uuid in region.uuids:
        region.adopt(uuid)
    region.wait_consistent()
    row = region.cloud.row(region.uuids[0])
    assert (row.state, row.host, row.attempt) == (State.ACTIVE, "a1", 1)


def test_a_server_that_both_databases_have_lost_needs_an_owner(region: Region) -> None:
    region.lose_rows(region.uuids)
    region.lose_servers(region.uuids)
    region.wait_unknown(*region.uuids)
    with pytest.raises(errors.Conflict, match="--project"):
        region.adopt(region.uuids[0])
    project = fleet.spec().project_id
    for uuid in region.uuids:
        region.adopt(uuid, Owner(project_id=project, user_id="u"))
    region.wait_consistent()


def test_a_row_in_error_in_the_place_of_a_lost_one_destroys_nothing(region: Region) -> None:
    """What the audit repairs before its agent has reported the guest can still be adopted; what was reported it leaves alone."""
    region.lose_rows(region.uuids)
    region.auditor.repair()
    rows = [region.cloud.rows(uuid).get("cell1") for uuid in region.uuids]
    assert {row.state for row in rows if row is not None} <= {State.ERROR, State.ACTIVE}
    region.wait_unknown(*region.uuids)
    for uuid in region.uuids:
        region.adopt(uuid)
    region.wait_consistent()


def test_what_is_not_to_be_adopted_is_refused(lite: Region) -> None:
    deleted, elsewhere, missing = lite.uuids
    lite.lose_rows(lite.uuids)
    lite.wait_unknown(*lite.uuids)
    cell2 = lite.conductor.cell("cell2").uuid

    def set_mapping(uuid: str, **values: object) -> None:
        lite.cloud.api.write(
            lambda tx: tx.execute(sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == uuid).values(values))
        )

    set_mapping(elsewhere, cell_uuid=cell2)
    with pytest.raises(errors.Conflict, match="mapped to cell 'cell2'"):
        lite.adopt(elsewhere)
    with pytest.raises(errors.NotFound, match="guest list"):
        lite.adopt(missing, host="a2")
    lite.cloud.delete(deleted)
    with pytest.raises((errors.Conflict, errors.NotFound)):
        lite.adopt(deleted)


def test_a_deleted_servers_guest_goes_though_its_row_was_lost(lite: Region) -> None:
    uuid = lite.uuids[0]
    lite.lose_rows([uuid])
    lite.wait_unknown(uuid)
    lite.cloud.delete(uuid)
    assert wait_until(lambda: lite.destroyed() == [uuid], PATIENCE)
    lite.wait_unknown()


def test_operators_list_and_adopt_by_command(lite: Region, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(lite.cloud.folder.path, capsys)
    assert shell.json("guest list") == []
    lite.lose_rows(lite.uuids)
    lite.wait_unknown(*lite.uuids)
    found = shell.json("guest list --cell cell1")
    assert [row["UUID"] for row in found] == sorted(lite.uuids)
    assert {(row["Cell"], row["Host"], row["Attempt"], row["VCPUs"], row["On Record"]) for row in found} == {
        ("cell1", "a1", 1, 2, "no record")
    }
    assert shell.json("guest list --cell cell2") == []
    assert "guest list" in shell.refused("guest adopt 00000000-0000-4000-8000-000000000000")
    assert "--project" in shell.refused(f"guest adopt {lite.uuids[0]} --user u")
    assert shell.done(f"guest adopt {' '.join(lite.uuids)}").splitlines() == [
        f"Adopted {uuid} on host a1 in cell cell1" for uuid in lite.uuids
    ]
    lite.wait_consistent()


def test_a_start_of_the_agent_ends_what_was_reported_before(lite: Region) -> None:
    uuid = lite.uuids[0]
    lite.lose_rows([uuid])
    lite.wait_unknown(uuid)
    lite.cloud.agents["cell1"].services["a1"].stop(0.0)
    lite.wait_unknown(uuid)
    Journal(journal_path(str(lite.cloud.folder.path / "hosts"), "a1")).remove(uuid)  # by hand, while no agent holds the host
    lite.cloud.start_agent("a1")
    lite.wait_unknown()


def test_a_repair_leaves_what_can_be_adopted(lite: Region) -> None:
    lite.lose_rows(lite.uuids)
    lite.wait_unknown(*lite.uuids)
    lite.auditor.repair()
    assert all(lite.cloud.rows(uuid) == {} for uuid in lite.uuids)
    advice = {finding.key: finding.advice for finding in lite.auditor.findings() if finding.kind == servers.ROWLESS}
    assert advice.keys() == set(lite.uuids)
    assert all(f"guest adopt {uuid}" in advice[uuid] for uuid in lite.uuids)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_repair_ends_no_guest_that_may_be_the_only_one(lite: Region, capsys: pytest.CaptureFixture[str], allowed: bool) -> None:
    """The API database maps the server to a cell that has no live row of it, as a wrong restore leaves it."""
    uuid, *others = lite.uuids
    cell2 = lite.conductor.cell("cell2").uuid
    here = instance_mappings.c.instance_uuid == uuid
    lite.cloud.api.write(lambda tx: tx.execute(sa.update(instance_mappings).where(here).values(cell_uuid=cell2)))
    shell = Shell(lite.cloud.folder.path, capsys)
    told = shell(f"verify --repair --settle 1 {'--end-unproven' if allowed else ''}")
    named = f"{uuid}, ACTIVE on a1, is mapped to cell cell2 (cell1) is now deleted here, with its guest"
    assert (named in told.err) is allowed
    if not allowed:
        assert "'verify --repair --end-unproven' deletes it here" in told.out
        lite.auditor.repair()
        assert lite.destroyed() == []
        return
    assert wait_until(lambda: lite.destroyed() == [uuid], PATIENCE)
    assert set(others) <= {guest.uuid for guest in lite.cloud.agents["cell1"].guests("a1")}
