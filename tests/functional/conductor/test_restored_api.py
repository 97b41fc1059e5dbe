"""An API database restored from a backup: no guest is lost or built twice, and everything agrees again without a repair by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cells import administration
from cells.administration import CellChange
from conductor.adopt_guest import Owner, adopt_guest
from conductor.audit.places import Places
from conductor.main import SuperConductorService
from db.api.operations import operations as api_operations
from db.api.operations import steps
from db.api.rows import incarnation
from db.api.rows import tables as api
from db.api.servers import mappings
from db.cell import incarnation_mark, unknown_guests
from db.cell import tables as cell
from objects.cell import CellState
from objects.flavor import Flavor
from objects.instance import Server, State
from objects.operation import OperationArgs, OperationKind, OperationState, Outcome
from objects.task import Power
from service.periodic import wait_until
from tests.support import backups, fleet
from tests.support.auditing import Auditor
from tests.support.conductor_process import Conductor
from tests.support.ground import USUAL
from tests.support.world import World, world

PATIENCE = 90.0
"""Seconds in which a region comes to rest on a busy machine."""
SMALL = fleet.flavor(vcpus=1, memory_mb=512, root_gb=1)
HOSTS = {"cell1": ["a1", "a2", "a3"], "cell2": ["b1", "b2", "b3"]}


class Region:
    """A world whose super conductor and scheduler can be stopped and started again, as for a restore."""

    def __init__(self, cloud: World) -> None:
        self.cloud = cloud
        self.super: SuperConductorService | None = None
        self._service: Conductor | None = None
        cloud.start_cells_and_agents()

    def begin(self, *, without: str | None = None) -> Conductor:
        """A new process of the API level's conductor, from which the database of the cell ``without`` is away."""
        self._service = made = self.cloud.conductor("service")
        if without is not None:
            made.registry.refresh_cells()
            made.databases[without].away = True
        self.super = SuperConductorService(self.cloud.quick, made.registry, made.database, made.bus)
        self.super.start()
        return made

    def stop(self) -> None:
        if self.super is not None and self._service is not None:
            self.super.stop()
            self._service.close()
            self.super = self._service = None

    def boot(self, count: int, **asked: Any) -> list[str]:
        return self.cloud.uuids(self.cloud.accept(count, timeout=600.0, flavor=SMALL, **asked))

    def states(self) -> dict[str, str]:
        return {server.uuid: server.state for server in self.cloud.evidence().servers}

    def rest(self) -> None:
        def at_rest() -> bool:
            servers = self.cloud.evidence().servers
            return all(s.state == ("deleted" if s.deleted else "active") for s in servers)

        assert wait_until(at_rest, PATIENCE, 0.2), self.states()

    def guests(self) -> dict[str, list[str]]:
        """The hosts of each server's guests."""
        found: dict[str, list[str]] = {}
        for host, uuids in self.cloud.evidence().guests.items():
            for uuid in uuids:
                found.setdefault(uuid, []).append(host)
        return found

    def server(self, uuid: str) -> Server:
        found = self.cloud.api.read(mappings.get, uuid)
        assert found is not None
        return found

    def snapshot(self, uuid: str) -> tuple[str | None, str]:
        """The snapshot of a shelved server, and the hash of its content."""
        batch = self.server(uuid).batch_id
        move = self.cloud.api.read(mappings.specs_by_batch, [batch])[batch].move
        assert move is not None
        return move.image_id, move.image_hash

    def mark(self) -> int:
        found = self.cloud.api.read(incarnation.read)
        return found.mark if found else -1

    def disable_cell_of(self, uuid: str) -> None:
        homes = {mapping.uuid: mapping.name for mapping in administration.list_cells(self.cloud.api)}
        name = homes[self.cloud.mapped(uuid).cell_uuid or ""]
        administration.change_cell(self.cloud.api, name, CellChange(state=CellState.DISABLED))

    def agrees(self) -> None:
        """Guests, rows, mappings, claims and quotas, after the repairs that an operator is told to make."""
        auditor = Auditor(self.cloud.conductor("auditor"), guests=False)
        assert wait_until(lambda: auditor.repair() == [] and auditor.kinds() == [], PATIENCE, 1.0), auditor.findings()
        evidence = self.cloud.evidence()
        assert evidence.drifts == ()
        assert evidence.charged == {**dict.fromkeys(evidence.charged, 0), **evidence.claimed}
        running = {uuid: hosts[0] for uuid, hosts in self.guests().items()}
        assert evidence.claims == running
        assert {s.uuid for s in evidence.servers if not s.deleted} == set(running)


@pytest.fixture(params=USUAL)
def region(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Region]:
    with world(tmp_path, HOSTS, request.param, embedded=True) as cloud:
        made = Region(cloud)
        yield made
        made.stop()


def no_mark(backup: backups.Backup, region: Region) -> None:
    """The backup and the cells are of a release that had none; the backup is some minutes old."""
    backup["incarnation"], backup["cell_marks"] = [], []
    for name in HOSTS:
        region.cloud.databases[name].write(lambda tx: tx.execute(sa.delete(cell.incarnation_seen)))
    for row in backup["build_requests"]:
        row["created_at"] -= 600.0


def other_cell(backup: backups.Backup, region: Region) -> None:
    """The cell that runs the queued servers takes nothing new."""
    del backup


def deadline(backup: backups.Backup, region: Region) -> None:
    """The queued requests are past their deadline."""
    for row in backup["build_requests"]:
        row["deadline"] = region.cloud.api.current_time() - 1.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("change", [other_cell, deadline, no_mark], ids=lambda change: change.__name__)
def test_no_guest_is_lost_or_doubled(region: Region, change: Any) -> None:
    cloud = region.cloud
    region.begin()
    before = region.boot(4)
    region.rest()
    region.stop()
    queued = region.boot(4)
    backup = backups.take(cloud.api, api.metadata)
    mark = region.mark()
    region.begin()
    after = region.boot(4)
    region.rest()
    for uuid in (before[0], queued[0], after[0]):
        cloud.delete(uuid)
    region.rest()
    assert wait_until(lambda: region.mark() > mark + 1, PATIENCE, 0.2)
    assert wait_until(
        lambda: all((s := cloud.databases[n].read(incarnation_mark.read_mark)) and s.mark > mark for n in HOSTS), PATIENCE
    )
    region.stop()
    cloud.scheduler.stop()
    guests = region.guests()
    home = cloud.mapped(queued[1]).cell_uuid
    change(backup, region)
    backups.restore(cloud.api, api.metadata, backup)
    if change is other_cell:
        name = next(m.name for m in administration.list_cells(cloud.api) if m.uuid == home)
        administration.change_cell(cloud.api, name, CellChange(state=CellState.DISABLED))
    cloud.keeper.registry.refresh_cells()
    cloud.start_scheduler()
    region.begin()
    expected = set(before[1:] + queued[1:] + after[1:])
    assert wait_until(lambda: {u for u in queued[1:] if region.states().get(u) == "active"} == set(queued[1:]), PATIENCE, 0.2)
    assert cloud.requests() == {}
    region.agrees()
    assert region.guests() == guests
    assert set(guests) == expected


@pytest.mark.timeout(300)
def test_a_backup_newer_than_marks_shows_by_queue(region: Region, caplog: pytest.LogCaptureFixture) -> None:
    cloud = region.cloud
    region.begin()
    region.rest()
    region.stop()
    queued = region.boot(3)
    backup = backups.take(cloud.api, api.metadata)
    region.begin()
    region.rest()
    region.stop()
    found = cloud.api.read(incarnation.read)
    assert found is not None
    guests = region.guests()
    backups.restore(cloud.api, api.metadata, backup)
    cloud.api.write(lambda tx: tx.execute(sa.update(api.incarnation).values(mark=found.mark)))
    region.begin()
    assert "3 queued requests are in their cells already" in caplog.text
    assert {region.states()[uuid] for uuid in queued} == {"active"}
    region.agrees()
    assert region.guests() == guests


@pytest.mark.timeout(300)
def test_nothing_is_leased_until_every_cell_answers(region: Region, caplog: pytest.LogCaptureFixture) -> None:
    cloud = region.cloud
    region.begin()
    region.rest()
    backup = backups.take(cloud.api, api.metadata)
    mark = region.mark()
    assert wait_until(lambda: region.mark() > mark + 1, PATIENCE, 0.2)
    region.stop()
    backups.restore(cloud.api, api.metadata, backup)
    [uuid] = region.boot(1)
    made = region.begin(without="cell2")
    assert "cell2" in caplog.text
    assert "nothing is leased" in caplog.text
    found = cloud.api.read(incarnation.read)
    assert found is not None
    assert found.comparing
    assert not wait_until(lambda: region.states()[uuid] == "active", 2.0, 0.2)
    made.databases["cell2"].away = False
    assert wait_until(lambda: region.states()[uuid] == "active", PATIENCE, 0.2)


@pytest.mark.timeout(300)
def test_a_fail_over_losing_commits_builds_nothing_twice(region: Region) -> None:
    """The super conductor goes on: what it has seen of the database is later than what it finds now."""
    cloud = region.cloud
    region.begin()
    region.rest()
    region.stop()
    queued = region.boot(3)
    backup = backups.take(cloud.api, api.metadata)
    region.begin()
    region.rest()
    mark = region.mark()
    assert wait_until(lambda: region.mark() > mark + 1, PATIENCE, 0.2)
    guests = region.guests()
    backups.restore(cloud.api, api.metadata, backup)
    assert wait_until(lambda: {region.states().get(u) for u in queued} == {"active"}, PATIENCE, 0.2)
    region.agrees()
    assert region.guests() == guests


@pytest.mark.timeout(300)
def test_a_restored_cell_database_repeats_its_rows(region: Region, caplog: pytest.LogCaptureFixture) -> None:
    cloud = region.cloud
    region.begin()
    old = region.boot(4)
    region.rest()
    database = cloud.databases["cell1"]
    assert wait_until(lambda: database.read(incarnation_mark.read_mark) is not None, PATIENCE)
    backup = backups.take(database, cell.metadata)
    mark = region.mark()
    here = [uuid for uuid in old if "cell1" in cloud.rows(uuid)]
    cloud.delete(here[0])
    region.rest()
    assert wait_until(lambda: region.mark() > mark + 2, PATIENCE, 0.2)
    guests = region.guests()
    backups.restore(database, cell.metadata, backup)
    assert wait_until(lambda: "was restored to an older state" in caplog.text, PATIENCE)
    assert wait_until(lambda: cloud.rows(here[0])["cell1"].state is State.DELETED, PATIENCE, 0.2), "deleted again"
    region.rest()
    region.agrees()
    assert region.guests() == guests


@pytest.mark.timeout(300)
def test_servers_lost_by_both_databases_are_adopted(region: Region) -> None:
    """A cell is restored first, then the API level: of its servers only their agents know, of the other cell's its rows."""
    cloud = region.cloud
    region.begin()
    region.boot(4)
    region.rest()
    database = cloud.databases["cell1"]
    assert wait_until(lambda: database.read(incarnation_mark.read_mark) is not None, PATIENCE)
    region.stop()
    above, below = backups.take(cloud.api, api.metadata), backups.take(database, cell.metadata)
    mark = region.mark()
    region.begin()
    lost = region.boot(6)
    region.rest()
    assert wait_until(lambda: region.mark() > mark + 2, PATIENCE, 0.2)
    here = {uuid for uuid in lost if "cell1" in cloud.rows(uuid)}
    assert 0 < len(here) < len(lost)
    guests = region.guests()
    region.stop()
    cloud.scheduler.stop()
    backups.restore(database, cell.metadata, below)
    backups.restore(cloud.api, api.metadata, above)
    cloud.keeper.registry.refresh_cells()
    cloud.start_scheduler()
    region.begin()
    assert wait_until(lambda: {u for u in lost if region.states().get(u) == "active"} == set(lost) - here, PATIENCE, 0.2)
    assert wait_until(lambda: {told.guest.uuid for told in database.read(unknown_guests.list_all)} == here, PATIENCE, 0.2)
    operator = cloud.conductor("operator")
    places = Places(operator.database, operator.ledger, operator.registry, overdue=180.0)
    places.begin_check()
    for uuid in sorted(here):
        adopt_guest(places, uuid, None, Owner(project_id=fleet.spec().project_id, user_id="u"))
    region.agrees()
    assert region.guests() == guests


@pytest.mark.timeout(300)
def test_servers_moved_after_the_backup_stay_in_place(region: Region) -> None:
    """One in another cell, one stopped, one resized and not confirmed, and one that was booted and moved after the backup."""
    cloud = region.cloud
    region.begin()
    moved, stopped, resized = region.boot(3)
    region.rest()
    backup = backups.take(cloud.api, api.metadata)
    mark = region.mark()
    [late] = region.boot(1)
    region.rest()
    large = Flavor(flavor_id="large", name="large", vcpus=2, memory_mb=1024, root_gb=1)
    args = OperationArgs(cross_cell=True)
    operations = [cloud.operate(uuid, OperationKind.MIGRATE, timeout=600.0, args=args) for uuid in (moved, late)]
    operations.append(cloud.operate(stopped, OperationKind.STOP, timeout=600.0))
    operations.append(cloud.operate(resized, OperationKind.RESIZE, timeout=600.0, flavor=large, args=args))
    for operation in operations:
        cloud.ended(operation)
    bodies = {uuid: region.server(uuid).body_uuid for uuid in (moved, late, stopped, resized)}
    assert len({*bodies, *bodies.values()}) == 7
    assert wait_until(lambda: region.mark() > mark + 1, PATIENCE, 0.2)
    region.stop()
    cloud.scheduler.stop()
    backups.restore(cloud.api, api.metadata, backup)
    cloud.keeper.registry.refresh_cells()
    cloud.start_scheduler()
    region.begin()
    auditor = Auditor(cloud.conductor("auditor"), guests=False)
    assert wait_until(lambda: auditor.repair() == [] and auditor.kinds() == [], PATIENCE, 1.0), auditor.findings()
    assert wait_until(lambda: {uuid: region.server(uuid).body_uuid for uuid in bodies} == bodies, PATIENCE, 0.2)
    [reopened] = cloud.api.read(api_operations.open_for, [resized]).values()
    assert (reopened.kind, reopened.state) == (OperationKind.RESIZE, OperationState.VERIFY)
    assert wait_until(lambda: set(region.guests()) == {*bodies.values(), resized}, PATIENCE, 0.2), "what nothing needs is gone"
    assert {uuid: region.server(uuid).state for uuid in bodies} == dict.fromkeys(bodies, "active")
    assert cloud.keeper.ledger.write(steps.confirm_moves, [reopened.uuid], cloud.api.current_time()).operations
    assert wait_until(lambda: set(region.guests()) == set(bodies.values()), PATIENCE, 0.2), "what it was before is gone"
    assert region.server(stopped).power is Power.OFF
    assert cloud.ended(cloud.operate(stopped, OperationKind.START)).outcome is Outcome.DONE
    assert cloud.ended(cloud.operate(moved, OperationKind.MIGRATE, args=args)).outcome is Outcome.DONE
    assert cloud.evidence().drifts == ()


@pytest.mark.timeout(300)
def test_servers_shelved_after_the_backup_are_shelved_again(region: Region) -> None:
    """One was ACTIVE at the backup, one queued, one was moved before its shelving, and one was booted after the backup."""
    cloud = region.cloud
    region.begin()
    early, moved = region.boot(2)
    region.rest()
    region.stop()
    [queued] = region.boot(1)
    backup = backups.take(cloud.api, api.metadata)
    mark = region.mark()
    region.begin()
    [late] = region.boot(1)
    region.rest()
    args = OperationArgs(cross_cell=True)
    cloud.ended(cloud.operate(moved, OperationKind.MIGRATE, timeout=600.0, args=args))
    shelved = (early, queued, moved, late)
    for uuid in shelved:
        cloud.ended(cloud.operate(uuid, OperationKind.SHELVE, timeout=600.0))
    assert wait_until(lambda: {region.states()[uuid] for uuid in shelved} == {"shelved"}, PATIENCE, 0.2), region.states()
    snapshots = {uuid: region.snapshot(uuid) for uuid in shelved}
    assert all(content_hash for _, content_hash in snapshots.values())
    assert wait_until(lambda: region.guests() == {} and region.mark() > mark + 1, PATIENCE, 0.2)
    region.stop()
    cloud.scheduler.stop()
    backups.restore(cloud.api, api.metadata, backup)
    cloud.keeper.registry.refresh_cells()
    cloud.start_scheduler()
    region.begin()
    assert {uuid: region.states().get(uuid) for uuid in shelved} == dict.fromkeys(shelved, "shelved"), "before anything is leased"
    assert {uuid: region.snapshot(uuid) for uuid in shelved} == snapshots
    auditor = Auditor(cloud.conductor("auditor"), guests=False)
    assert wait_until(lambda: auditor.repair() == [] and auditor.kinds() == [], PATIENCE, 1.0), auditor.findings()
    for uuid in shelved:
        assert cloud.ended(cloud.operate(uuid, OperationKind.UNSHELVE)).outcome is Outcome.DONE
    assert set(region.guests()) == {region.server(uuid).body_uuid for uuid in shelved}
    assert cloud.evidence().drifts == ()
