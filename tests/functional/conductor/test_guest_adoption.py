"""Guests whose records are lost: their agents tell the cell of them, and an operator adopts them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import sqlalchemy as sa

from compute.journal import Journal
from compute.simulated import journal_path
from conductor.adopt_guest import Adopted, Owner, adopt_guest
from conductor.audit import addresses as address_check
from conductor.audit import servers
from conductor.audit.places import Places
from db.api.claims import claims
from db.api.rows.ledger import Stamp
from db.api.rows.tables import addresses, instance_mappings, quotas, request_specs
from db.cell import unknown_guests
from db.cell.tables import builds as build_table
from db.cell.tables import instances as instance_table
from db.sql.connection import ApiTransaction, Connection
from objects import errors
from objects.instance import State
from objects.network import PortRequest
from objects.operation import OperationKind, Outcome
from service.periodic import wait_until
from tests.support import applying, fleet
from tests.support.auditing import Auditor
from tests.support.commands import Shell
from tests.support.ground import GROUNDS
from tests.support.pools import make_network, ports_of
from tests.support.world import PATIENCE, World, world_fixture

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

    def adopt(self, uuid: str, owner: Owner | None = None, host: str | None = None) -> Adopted:
        self.places.begin_check()
        return adopt_guest(self.places, uuid, host, owner)

    def adopted_owner(self) -> tuple[str, str]:
        columns = (instance_mappings.c.project_id, instance_mappings.c.user_id)
        [owner] = {tuple(row) for row in self.cloud.api.read(lambda tx: tx.execute(sa.select(*columns)).all())}
        return owner

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


def _set_back(tx: Connection, uuid: str) -> None:
    """As in a backup that was taken while its host built it, in a later attempt of its agent."""
    built = {"state": State.SCHEDULED, "builder": None, "attempt": 0, "power": "on", "task_number": 0, "version": 1}
    tx.execute(sa.update(instance_table).where(instance_table.c.uuid == uuid).values(built))
    tx.execute(sa.update(build_table).where(build_table.c.instance_uuid == uuid).values(ports=None))


def _lose_servers(tx: ApiTransaction, stamp: Stamp, uuids: Sequence[str]) -> None:
    claims.release_claims(tx, stamp, uuids)
    tx.execute(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid.in_(uuids)))
    tx.execute(sa.delete(request_specs))
    tx.execute(sa.delete(quotas))


region = world_fixture(grounds=GROUNDS, embedded=True, of=Region)


lite = world_fixture(of=Region)


def test_a_server_without_row_is_adopted_completely(region: Region) -> None:
    region.lose_rows(region.uuids)
    region.wait_unknown(*region.uuids)
    assert set(region.unknown().values()) == {"no record"}
    for uuid in region.uuids:
        region.adopt(uuid)
    region.wait_consistent()
    row = region.cloud.row(region.uuids[0])
    assert (row.state, row.host, row.attempt) == (State.ACTIVE, "a1", 1)


def test_a_server_without_database_rests_on_its_host(region: Region) -> None:
    region.lose_rows(region.uuids)
    region.lose_servers(region.uuids)
    region.wait_unknown(*region.uuids)
    spec = fleet.spec()
    first, *others = [region.adopt(uuid).from_host for uuid in region.uuids]
    assert first[:4] == ("size", "image", f"project {spec.project_id}", f"user {spec.user_id}")
    assert [len(each) for each in (first, *others)] == [5, 1, 1], "the others are of the same batch"
    region.wait_consistent()
    assert region.adopted_owner() == (spec.project_id, spec.user_id)


def test_an_earlier_agents_guest_needs_an_owner(lite: Region) -> None:
    uuid = lite.uuids[0]
    lite.lose_rows(lite.uuids)
    lite.lose_servers(lite.uuids)
    lite.wait_unknown(*lite.uuids)
    [reported] = lite.cloud.databases["cell1"].read(unknown_guests.list_all, [uuid])
    earlier = msgspec.structs.replace(reported.guest, power="", project_id="", user_id="")
    lite.cloud.databases["cell1"].write(unknown_guests.replace_guests, "a1", [earlier])
    with pytest.raises(errors.Conflict, match="--project"):
        lite.adopt(uuid)
    done = lite.adopt(uuid, Owner(project_id="mine", user_id="u"))
    assert done.from_host[:2] == ("size", "image")
    assert len(done.from_host) == 3


def test_an_adopted_guest_keeps_its_power_and_interfaces(lite: Region) -> None:
    """Its row is lost, or in the backup it was still being built."""
    lost, built, bare = lite.uuids
    blue = make_network(lite.cloud.api, "10.0.0.0/28")
    for uuid in (lost, built):
        attach = lite.cloud.operate(uuid, OperationKind.ATTACH_INTERFACE, port=PortRequest(network=blue))
        assert lite.cloud.ended(attach).outcome is Outcome.DONE
        assert lite.cloud.ended(lite.cloud.operate(uuid, OperationKind.PAUSE)).outcome is Outcome.DONE
    lite.cloud.ended(lite.cloud.operate(bare, OperationKind.FAIL))
    fault = lite.cloud.row(bare).task_fault
    before = {uuid: ports_of(lite.cloud.api, uuid) for uuid in lite.uuids}
    lite.lose_rows([lost, bare])
    lite.cloud.databases["cell1"].write(_set_back, built)
    lite.wait_unknown(*lite.uuids)
    for uuid in lite.uuids:
        assert lite.adopt(uuid).from_host == ()
    lite.wait_consistent()
    assert {uuid: lite.cloud.row(uuid).power for uuid in lite.uuids} == {lost: "paused", built: "paused", bare: "on"}
    assert {uuid: ports_of(lite.cloud.api, uuid) for uuid in lite.uuids} == before
    assert (lite.cloud.row(bare).task_state, lite.cloud.row(bare).task_fault) == ("failed", fault), "an administrator called it so"


def test_a_lost_address_returns_with_its_guest(lite: Region) -> None:
    uuid = lite.uuids[0]
    blue = make_network(lite.cloud.api, "10.0.0.0/28")
    attach = lite.cloud.operate(uuid, OperationKind.ATTACH_INTERFACE, port=PortRequest(network=blue))
    assert lite.cloud.ended(attach).outcome is Outcome.DONE
    before = ports_of(lite.cloud.api, uuid)
    lite.lose_rows([uuid])
    freed = {"server_uuid": None, "position": None, "free_since": 0.0}
    lite.cloud.api.write(lambda tx: tx.execute(sa.update(addresses).where(addresses.c.server_uuid == uuid).values(freed)))
    lite.wait_unknown(uuid)
    assert lite.adopt(uuid).from_host == (f"interface {before[uuid][0].mac}",)
    lite.wait_consistent()
    assert ports_of(lite.cloud.api, uuid) == before


def test_a_record_regains_its_lost_interface(lite: Region) -> None:
    """The guest has it, so nothing changes on its host."""
    uuid = lite.uuids[0]
    blue = make_network(lite.cloud.api, "10.0.0.0/28")
    attach = lite.cloud.operate(uuid, OperationKind.ATTACH_INTERFACE, port=PortRequest(network=blue))
    assert lite.cloud.ended(attach).outcome is Outcome.DONE
    here = build_table.c.instance_uuid == uuid
    lite.cloud.databases["cell1"].write(lambda tx: tx.execute(sa.update(build_table).where(here).values(ports=None)))
    assert lite.auditor.kinds() == [(address_check.LACKING, uuid)]
    before = lite.cloud.journal("a1")
    lite.auditor.repair()
    lite.wait_consistent()
    changed_guests = [entry.changed for entry in lite.cloud.journal("a1")[len(before) - 1 :]]
    assert all(changed_guests)
    assert len({guest.ports for guest in changed_guests if guest is not None}) == 1


def test_an_error_row_replacing_another_destroys_nothing(region: Region) -> None:
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


def test_a_deleted_servers_guest_goes_without_its_row(lite: Region) -> None:
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


def test_an_agent_start_ends_its_earlier_reports(lite: Region) -> None:
    uuid = lite.uuids[0]
    lite.lose_rows([uuid])
    lite.wait_unknown(uuid)
    lite.cloud.agents["cell1"].services["a1"].stop(0.0)
    lite.wait_unknown(uuid)
    Journal(journal_path(str(lite.cloud.folder.path / "hosts"), "a1")).remove_guest(uuid)  # by hand, while no agent holds the host
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
def test_a_repair_ends_no_possibly_only_guest(lite: Region, capsys: pytest.CaptureFixture[str], allowed: bool) -> None:
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
