"""What an operator has committed holds for every selection asked for after that. No process polls for it in these tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from cells.registry import CellRegistry
from db.api import aggregates, claims, host_mappings
from db.api.cell_mappings import get, update
from db.api.epochs import Epoch, bump
from objects import errors
from objects.cell import CellMapping, CellState, HostMapping
from scheduler.cursor import Cursor
from scheduler.freshness import Freshness
from scheduler.manager import SchedulerManager
from scheduler.plugins import load_driver
from scheduler.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.cell_databases import Cells
from tests.support.fleet import Site
from tests.support.ground import USUAL, Ground

NEVER = 3600.0
SLOW = SchedulerSettings(
    service_poll_interval=NEVER, feed_poll_interval=NEVER, claims_poll_interval=NEVER, service_down_time=NEVER, warm_up=0.0
)


class Watched:
    """Two cells with a host each, and a scheduler that looks at them when it starts and never again by itself."""

    def __init__(self, cells: Cells, registry: CellRegistry) -> None:
        self.cells = cells
        self.east, self.west = cells.add("east"), cells.add("west")
        self.site = Site(cells.api, [])
        for cell in (self.east, self.west):
            cells.report(cell.name, f"{cell.name}-host")
            cells.api.write(host_mappings.add, [HostMapping(host=f"{cell.name}-host", cell_uuid=cell.uuid)], time.time())
            self.site.ledger.write(claims.set_inventory, [fleet.node(f"{cell.name}-host", vcpus=8)], cell.uuid)
        self.table, self.cursor = HostTable(), Cursor()
        self.freshness = Freshness(SLOW, registry, cells.api, self.table, self.cursor)
        self.freshness.start()
        self.scheduler = self.make_scheduler(self.freshness.topology)

    def make_scheduler(self, topology: Callable[..., Mapping[str, int]]) -> SchedulerManager:
        ledger = claims.Ledger(self.cells.api, "scheduler")
        return SchedulerManager(SLOW, load_driver(SLOW), self.table, self.cursor, ledger, self.freshness.ages, topology)

    def turn(self, cell: CellMapping, state: CellState) -> None:
        now = self.cells.api.read(get, cell.uuid)
        self.cells.api.write(update, msgspec.structs.replace(now, state=state))

    def hosts(self, boots: int = 4, **asked: str) -> set[str]:
        """Where so many boots go: with free hosts in both cells they do not all go to one."""
        return {self.site.boot(self.scheduler, fleet.spec(fleet.flavor(1, 64, 1), **asked))[0][0].host for _ in range(boots)}


@pytest.fixture(params=USUAL)
def watched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    place = Ground(request.param, tmp_path)
    cells = Cells(tmp_path, place)
    with cells.registry() as registry:
        made = Watched(cells, registry)
        yield made
        made.freshness.stop()
    place.end(cells.api.dispose, place.release)


@pytest.mark.parametrize("state", [CellState.DISABLED, CellState.DRAINING])
def test_a_cell_that_was_taken_out_gets_nothing_more(watched: Watched, state: CellState) -> None:
    assert watched.hosts() == {"east-host", "west-host"}
    watched.turn(watched.east, state)
    assert watched.hosts() == {"west-host"}
    watched.turn(watched.east, CellState.ENABLED)
    assert "east-host" in watched.hosts()


def test_a_host_that_was_unmapped_gets_nothing_more(watched: Watched) -> None:
    watched.cells.api.write(host_mappings.delete, "east-host")
    assert watched.hosts() == {"west-host"}


def test_a_host_belongs_to_its_zone_as_soon_as_that_is_made(watched: Watched) -> None:
    zone = watched.cells.api.write(aggregates.create, "racks", {"availability_zone": "red"})
    watched.cells.api.write(aggregates.add_host, zone.id, "west-host")
    assert watched.hosts(2, availability_zone="red") == {"west-host"}
    watched.cells.api.write(aggregates.set_metadata, zone.id, {"availability_zone": "blue"})
    with pytest.raises(errors.NoValidHost):
        watched.hosts(1, availability_zone="red")


def test_a_selection_is_made_though_the_operators_never_rest(watched: Watched) -> None:
    """What rises all the time must not keep anybody waiting: then the plan is made on what was read last."""
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            watched.cells.api.write(bump, Epoch.AGGREGATES)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        assert watched.hosts(8) <= {"east-host", "west-host"}
    finally:
        stop.set()
        thread.join()


def test_a_change_that_overtakes_the_transaction_is_planned_on(watched: Watched) -> None:
    """The cell is taken out after the process looked, and before its transaction reads the log of claims."""
    looks: list[bool] = []

    def topology(*, look: bool) -> Mapping[str, int]:
        known = watched.freshness.topology(look=look)
        if not looks:
            watched.turn(watched.east, CellState.DISABLED)
        looks.append(look)
        return known

    watched.scheduler = watched.make_scheduler(topology)
    assert watched.hosts(1) == {"west-host"}
    assert looks == [False, True, False]
