"""A cell's database restored from a backup: nothing starts from its old rows that the API level knows not to run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cells.administration import CellChange, change_cell
from conductor.adopt_guest import adopt_guest
from conductor.audit.places import Places
from conductor.main import CellConductorService, SuperConductorService
from db.api.rows import incarnation
from db.api.servers import mappings
from db.cell import incarnation_mark, unknown_guests
from db.cell import tables as cell
from objects import errors
from objects.cell import CellState
from objects.flavor import Flavor
from objects.instance import Instance, Server, State
from objects.operation import OperationArgs, OperationKind, Outcome
from objects.task import Power, TaskState
from service.periodic import wait_until
from tests.support import backups, fleet
from tests.support.auditing import Auditor
from tests.support.conductor_process import Conductor
from tests.support.ground import USUAL
from tests.support.world import World, world

PATIENCE = 90.0
"""Seconds in which a region comes to rest on a busy machine."""
SMALL = fleet.flavor(vcpus=1, memory_mb=512, root_gb=1)
LARGE = Flavor(flavor_id="large", name="large", vcpus=2, memory_mb=1024, root_gb=1)


class Region:
    """Two cells with their agents, and conductors of both levels that can be stopped and started again."""

    def __init__(self, cloud: World) -> None:
        self.cloud = cloud
        self.database = cloud.databases["cell1"]
        self.below: CellConductorService | None = None
        self.above: SuperConductorService | None = None
        self._process: Conductor | None = None
        quick = cloud.quick
        other = CellConductorService(quick, "cell2", cloud.databases["cell2"], cloud.buses["cell2"], cloud.vault)
        other.start()
        cloud.closing.services.append(other.stop)
        self.start_below()
        self.start_above()
        cloud.start_agents()

    def start_below(self) -> None:
        """The conductor of cell1."""
        self.below = CellConductorService(self.cloud.quick, "cell1", self.database, self.cloud.buses["cell1"], self.cloud.vault)
        self.below.start()

    def start_above(self) -> None:
        """The API level's conductor."""
        self._process = made = self.cloud.conductor("service")
        self.above = SuperConductorService(self.cloud.quick, made.registry, made.database, made.bus)
        self.above.start()

    def stop_below(self) -> None:
        if self.below is not None:
            self.below.stop()
            self.below = None

    def stop_above(self) -> None:
        if self.above is not None and self._process is not None:
            self.above.stop()
            self._process.close()
            self.above = None

    def stop_agent(self, host: str) -> None:
        agents = self.cloud.agents[self.cloud.homes[host]]
        agents.services.pop(host).stop()

    def boot(self, **asked: Any) -> str:
        [uuid] = self.cloud.uuids(self.cloud.accept(1, timeout=600.0, flavor=SMALL, **asked))
        return uuid

    def booted(self, host: str) -> str:
        uuid = self.boot(force_hosts=(host,))
        assert wait_until(lambda: self.server(uuid).state == "active", PATIENCE), self.server(uuid)
        return uuid

    def resize_to_cell2(self, uuid: str) -> None:
        """It then waits for its user, and its source is off."""
        change_cell(self.cloud.api, "cell1", CellChange(state=CellState.DISABLED))
        args = OperationArgs(cross_cell=True)
        self.cloud.ended(self.cloud.operate(uuid, OperationKind.RESIZE, timeout=600.0, flavor=LARGE, args=args))
        assert self.running() == ["b1"]

    def server(self, uuid: str) -> Server:
        found = self.cloud.api.read(mappings.get, uuid)
        assert found is not None
        return found

    def row(self, uuid: str) -> Instance:
        """The row in cell1."""
        return self.cloud.rows(uuid)["cell1"]

    def running(self) -> list[str]:
        """The hosts with a guest that runs, of every one of them."""
        found = [(host, guest) for host, name in self.cloud.homes.items() for guest in self.cloud.agents[name].guests(host)]
        return [host for host, guest in found if guest.power.uses_disk]

    def backup(self) -> backups.Backup:
        assert wait_until(lambda: self.database.read(incarnation_mark.read_mark) is not None, PATIENCE)
        return backups.take(self.database, cell.metadata)

    def mark(self) -> int:
        found = self.cloud.api.read(incarnation.read)
        return found.mark if found else -1

    def pass_marks(self) -> None:
        """So that a restore shows."""
        mark = self.mark()
        assert wait_until(lambda: self.mark() > mark + 2, PATIENCE, 0.2)

    def restore(self, backup: backups.Backup) -> None:
        backups.restore(self.database, cell.metadata, backup)

    def agrees(self) -> None:
        auditor = Auditor(self.cloud.conductor("auditor"), guests=False)
        assert wait_until(lambda: auditor.repair() == [] and auditor.kinds() == [], PATIENCE, 1.0), auditor.findings()


@pytest.fixture(params=USUAL)
def region(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Region]:
    with world(tmp_path, {"cell1": ["a1", "a2"], "cell2": ["b1"]}, request.param, embedded=True) as cloud:
        made = Region(cloud)
        yield made
        made.stop_above()
        made.stop_below()


@pytest.mark.timeout(300)
def test_a_held_source_stays_off_whoever_starts_first(region: Region) -> None:
    """It waits for its user beside its twin. The backup is from before its hold. Its agent starts before any super conductor."""
    uuid = region.booted("a1")
    backup = region.backup()
    region.resize_to_cell2(uuid)
    region.pass_marks()
    region.stop_agent("a1")
    region.stop_above()
    region.stop_below()
    region.restore(backup)
    assert region.row(uuid).power is Power.ON
    region.start_below()
    region.cloud.start_agent("a1")
    assert wait_until(lambda: region.row(uuid).power is Power.HELD, PATIENCE), "its host has told its row the latest task"
    assert region.running() == ["b1"]
    region.start_above()
    assert wait_until(lambda: region.row(uuid).task_state is TaskState.DONE, PATIENCE)
    region.agrees()
    assert region.running() == ["b1"]


@pytest.mark.timeout(300)
def test_a_restore_under_running_conductors_starts_no_source(region: Region) -> None:
    uuid = region.booted("a1")
    backup = region.backup()
    region.resize_to_cell2(uuid)
    region.pass_marks()
    region.stop_agent("a1")
    region.restore(backup)
    region.cloud.start_agent("a1")
    assert wait_until(lambda: region.row(uuid).power is Power.HELD, PATIENCE)
    assert region.running() == ["b1"]
    region.agrees()
    assert region.running() == ["b1"]


@pytest.mark.timeout(300)
def test_a_task_that_is_over_is_not_repeated(region: Region) -> None:
    """The backup has the order of a reboot that its host has carried out since."""
    uuid = region.booted("a1")
    driver = region.cloud.agents["cell1"].drivers["a1"]
    driver.gate.clear()
    reboot = region.cloud.operate(uuid, OperationKind.REBOOT, timeout=600.0)
    assert wait_until(lambda: driver.tasks == [("reboot", "soft")], PATIENCE)
    assert region.row(uuid).task_state is TaskState.RUNNING
    backup = region.backup()
    driver.gate.set()
    assert region.cloud.ended(reboot).outcome is Outcome.DONE
    region.pass_marks()
    region.stop_below()
    region.restore(backup)
    region.start_below()
    assert wait_until(lambda: region.row(uuid).task_state is TaskState.DONE, PATIENCE)
    region.agrees()
    assert driver.tasks == [("reboot", "soft")]


@pytest.mark.timeout(300)
def test_a_server_built_elsewhere_is_not_rebuilt(region: Region) -> None:
    """The backup has its build on one host of the cell, which failed. It runs on the other one since."""
    change_cell(region.cloud.api, "cell2", CellChange(state=CellState.DISABLED))
    drivers = region.cloud.agents["cell1"].drivers
    for driver in drivers.values():
        driver.gate.clear()
    uuid = region.boot()
    assert wait_until(lambda: "cell1" in region.cloud.rows(uuid) and region.row(uuid).state is State.BUILDING, PATIENCE)
    first = region.row(uuid).host or ""
    assert wait_until(lambda: drivers[first].spawning == [uuid], PATIENCE)
    backup = region.backup()
    drivers[first].raises = errors.BuildFailed("The test fails it.")
    for driver in drivers.values():
        driver.gate.set()
    assert wait_until(lambda: region.server(uuid).state == "active", PATIENCE)
    host = region.server(uuid).host
    assert host not in (None, first)
    drivers[first].raises = None
    region.pass_marks()
    region.stop_below()
    region.restore(backup)
    region.start_below()
    assert wait_until(lambda: region.row(uuid).state is State.ERROR, PATIENCE), region.row(uuid)
    assert wait_until(lambda: [each.host for each in region.database.read(unknown_guests.list_all)] == [host], PATIENCE)
    operator = region.cloud.conductor("operator")
    places = Places(operator.database, operator.ledger, operator.registry, overdue=180.0)
    places.begin_check()
    adopt_guest(places, uuid, None, None)
    region.agrees()
    assert (region.running(), drivers[first].spawning) == ([host], [uuid])
