"""What an operator has committed holds for every selection asked for after that. No process polls for it in these tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from cells import host_service
from cells.host_service import HostChange
from cells.registry import CellRegistry
from db.api.claims import claims
from db.api.deployment import aggregates, host_mappings
from db.api.deployment.cell_mappings import get, update_mapping
from db.api.rows.epochs import Epoch, bump_epoch
from db.cell import services
from db.sql.connection import ApiTransaction
from objects import errors
from objects.cell import CellMapping, CellState, HostMapping
from objects.inventory import GroupSlots, Inventory, Standing
from objects.process import AGENT_BINARY
from scheduler.claim.claim_planner import ClaimPlanner
from scheduler.claim.cursor import Cursor
from scheduler.engine.job import PlanContext, checked_job
from scheduler.framework.settings import SchedulerSettings
from scheduler.manager import SchedulerManager
from scheduler.plugins import load_driver
from scheduler.table.host_table import HostTable
from scheduler.table_updater import TableUpdater
from scheduler.view import FleetReader
from tests.support import fleet
from tests.support.cell_databases import Cells
from tests.support.fleet import Site
from tests.support.ground import GROUNDS, Ground

NEVER = 3600.0
SLOW = SchedulerSettings(
    service_poll_interval=NEVER, feed_poll_interval=NEVER, claims_poll_interval=NEVER, service_down_time=NEVER, warm_up=0.0
)


class Watched:
    """Two cells with a host each, and a scheduler that looks at them when it starts and never again by itself."""

    def __init__(self, cells: Cells, registry: CellRegistry) -> None:
        self.cells, self.registry = cells, registry
        self.east, self.west = cells.add("east"), cells.add("west")
        self.site = Site(cells.api, [])
        for cell in (self.east, self.west):
            cells.report(cell.name, f"{cell.name}-host")
            cells.api.write(host_mappings.add_mappings, [HostMapping(host=f"{cell.name}-host", cell_uuid=cell.uuid)], time.time())
            self.site.ledger.write(claims.set_inventory, [fleet.node(f"{cell.name}-host", vcpus=8)], cell.uuid)
        self.table, self.cursor, self.freshness = self.look()
        self.scheduler = self.make_scheduler(self.freshness)

    def look(self) -> tuple[HostTable, Cursor, TableUpdater]:
        """What one more process knows of the fleet as it is now."""
        table, cursor = HostTable(), Cursor()
        freshness = TableUpdater(SLOW, self.registry, self.cells.api, table, cursor)
        freshness.start()
        return table, cursor, freshness

    def make_scheduler(self, reader: FleetReader) -> SchedulerManager:
        ledger = claims.Ledger(self.cells.api, "scheduler")
        return SchedulerManager(SLOW, load_driver(SLOW), self.table, self.cursor, ledger, reader)

    def turn(self, cell: CellMapping, state: CellState) -> None:
        now = self.cells.api.read(get, cell.uuid)
        self.cells.api.write(update_mapping, msgspec.structs.replace(now, state=state))

    def tell(self, host: str, **asked: bool) -> None:
        """As the API and the commands do it."""
        host_service.change_agent(self.registry.of_host(host), self.site.ledger, host, msgspec.convert(asked, HostChange))

    def hosts(self, boots: int = 4, **asked: str) -> set[str]:
        """Where so many boots go: with free hosts in both cells they do not all go to one."""
        return {self.site.boot(self.scheduler, fleet.spec(fleet.flavor(1, 64, 1), **asked))[0][0].host for _ in range(boots)}


@pytest.fixture(params=GROUNDS)
def watched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    place = Ground(request.param, tmp_path)
    cells = Cells(tmp_path, place)
    with cells.registry() as registry:
        made = Watched(cells, registry)
        yield made
        made.freshness.stop()
    place.end(cells.api.dispose_connections, place.release)


@pytest.mark.parametrize("state", [CellState.DISABLED, CellState.DRAINING])
def test_a_removed_cell_gets_nothing_more(watched: Watched, state: CellState) -> None:
    assert watched.hosts() == {"east-host", "west-host"}
    watched.turn(watched.east, state)
    assert watched.hosts() == {"west-host"}
    watched.turn(watched.east, CellState.ENABLED)
    assert "east-host" in watched.hosts()


@pytest.mark.parametrize("what", ["disabled", "forced_down"])
def test_a_removed_host_gets_nothing_more(watched: Watched, what: str) -> None:
    assert watched.hosts() == {"east-host", "west-host"}
    watched.tell("east-host", **{what: True})
    assert watched.hosts() == {"west-host"}
    watched.tell("west-host", **{what: True})
    with pytest.raises(errors.NoValidHost):
        watched.hosts(1)


def test_a_readmitted_host_is_waited_for(watched: Watched) -> None:
    """A process that has not read the cell's feed so far does not know what was said of the host, only that something was."""
    watched.tell("east-host", disabled=True)
    table, _, freshness = watched.look()
    try:
        watched.tell("east-host", disabled=False)
        watched.freshness.follow_changes()
        now = time.monotonic()
        assert watched.table.awaits_hosts(now - 60.0)
        assert not table.awaits_hosts(now - 60.0), "it was told of nothing yet"
        freshness.follow_changes()
        assert table.awaits_hosts(now - 60.0)
        assert not table.awaits_hosts(time.monotonic()), "not for ever"
    finally:
        freshness.stop()


def test_what_changed_nothing_makes_sure_again(watched: Watched) -> None:
    """A command that was interrupted after it told the cell is repeated."""
    watched.registry.of_host("east-host").write(services.set_disabled, "east-host", AGENT_BINARY, True, None, time.time())
    watched.tell("east-host", disabled=True)
    assert watched.hosts() == {"west-host"}


def test_a_claim_that_is_overtaken_goes_elsewhere(watched: Watched) -> None:
    """The host is taken out after the plan was made, and before its transaction has locked anything."""
    if not watched.cells.ground.real:
        pytest.skip("a file has one writer at a time: nobody takes a host out while a claim is being made")
    leased = watched.site.leased(fleet.spec(fleet.flavor(1, 64, 1)), 2)
    job = checked_job(fleet.CONTEXT, leased, list(leased.fences))
    mono = time.monotonic()
    now = PlanContext(mono=mono, wall=time.time(), alive_since=0.0, young=False, mapped_since=mono, ages={}, began=0.0)
    planned: list[set[str]] = []

    class Overtaken(ClaimPlanner):
        def plan_jobs(
            self, changes: Sequence[Inventory], standings: Sequence[Standing], groups: Sequence[GroupSlots]
        ) -> Collection[int]:
            wanted = super().plan_jobs(changes, standings, groups)
            planned.append({watched.table.hosts[row] for row in job.rows.values()})
            with ThreadPoolExecutor(1) as other:
                other.submit(watched.tell, "east-host", disabled=True).result()
            return wanted

    planner = Overtaken(watched.table, load_driver(SLOW), watched.cursor, [job], now)
    claims.Ledger(watched.cells.api, "scheduler").write(claims.claim_hosts, [job.claim_request], planner)
    assert planned == [{"east-host", "west-host"}]
    assert set(watched.site.claimed().values()) == {"west-host"}


def test_a_host_of_a_restored_cell_reopens(watched: Watched) -> None:
    """The feed of the restored database ends before the event, so nobody could read that far."""
    watched.tell("east-host", disabled=True)
    watched.tell("east-host", disabled=False)
    watched.site.ledger.write(claims.forget_lost_events, watched.east.uuid, 0)
    assert watched.hosts() == {"east-host", "west-host"}


def test_a_host_that_was_unmapped_gets_nothing_more(watched: Watched) -> None:
    watched.cells.api.write(host_mappings.delete, "east-host")
    assert watched.hosts() == {"west-host"}


def test_a_host_joins_its_zone_upon_its_creation(watched: Watched) -> None:
    zone = watched.cells.api.write(aggregates.create, "racks", {"availability_zone": "red"})
    watched.cells.api.write(aggregates.add_host, zone.id, "west-host")
    with pytest.raises(errors.NoValidHost):
        watched.hosts(1, availability_zone="blue")
    watched.cells.api.write(aggregates.set_metadata, zone.id, {"availability_zone": "blue"})
    with pytest.raises(errors.NoValidHost):
        watched.hosts(1, availability_zone="red")
    assert watched.hosts(2, availability_zone="blue") == {"west-host"}


def enter_zone(tx: ApiTransaction, aggregate: int, host: str) -> None:
    aggregates.set_metadata(tx, aggregate, {"availability_zone": "blue"})
    aggregates.add_host(tx, aggregate, host)


ZONE_CHANGES: dict[str, Callable[[ApiTransaction, int], None]] = {
    "renamed": lambda tx, red: aggregates.set_metadata(tx, red, {"availability_zone": "blue"}),
    "unset": lambda tx, red: aggregates.set_metadata(tx, red, {"availability_zone": None}),
    "left": lambda tx, red: aggregates.remove_host(tx, red, "west-host"),
    "entered": lambda tx, red: enter_zone(tx, aggregates.create(tx, "others").id, "east-host"),
    "given": lambda tx, red: aggregates.set_metadata(tx, aggregates.find_by_name(tx, "plain").id, {"availability_zone": "blue"}),
}


@pytest.mark.parametrize("change", ZONE_CHANGES)
def test_a_host_with_servers_stays_in_its_zone(watched: Watched, change: str) -> None:
    api = watched.cells.api
    red = api.write(aggregates.create, "reds", {"availability_zone": "red"})
    plain = api.write(aggregates.create, "plain")
    api.write(aggregates.add_host, red.id, "west-host")
    api.write(aggregates.add_host, plain.id, "east-host")
    assert watched.hosts() == {"east-host", "west-host"}
    with pytest.raises(errors.Conflict, match=r"has \d servers, so it stays in "):
        api.write(ZONE_CHANGES[change], red.id)
    claimed = list(watched.site.claimed())
    watched.site.ledger.write(claims.release_claims, claimed)
    api.write(ZONE_CHANGES[change], red.id)


def test_a_host_with_servers_joins_its_zone_twice(watched: Watched) -> None:
    api = watched.cells.api
    first, second = (api.write(aggregates.create, name, {"availability_zone": "red"}) for name in ("first", "second"))
    api.write(aggregates.add_host, first.id, "west-host")
    assert watched.hosts(1, availability_zone="red") == {"west-host"}
    api.write(aggregates.add_host, second.id, "west-host")
    api.write(aggregates.remove_host, first.id, "west-host")
    with pytest.raises(errors.Conflict):
        api.write(aggregates.remove_host, second.id, "west-host")


def test_a_host_a_build_may_retry_on_stays(watched: Watched) -> None:
    watched.site.ledger.write(claims.set_inventory, [fleet.node("west-2", vcpus=8)], watched.west.uuid)
    watched.cells.report("west", "west-2")
    watched.cells.api.write(host_mappings.add_mappings, [HostMapping(host="west-2", cell_uuid=watched.west.uuid)], time.time())
    watched.turn(watched.east, CellState.DISABLED)
    watched.table, watched.cursor, watched.freshness = watched.look()
    watched.scheduler = watched.make_scheduler(watched.freshness)
    [[chosen, other]] = watched.site.boot(watched.scheduler, fleet.spec(fleet.flavor(1, 64, 1)))
    zone = watched.cells.api.write(aggregates.create, "reds", {"availability_zone": "red"})
    with pytest.raises(errors.Conflict, match="1 servers"):
        watched.cells.api.write(aggregates.add_host, zone.id, chosen.host)
    with pytest.raises(errors.Conflict, match="is an alternate of 1 builds"):
        watched.cells.api.write(aggregates.add_host, zone.id, other.host)


def test_a_claim_overtaken_by_zone_changes_is_refused(watched: Watched) -> None:
    """The host is without servers when its zone changes, and a transaction has already planned one there."""
    if not watched.cells.ground.real:
        pytest.skip("a file has one writer at a time: nobody changes a zone while a claim is being made")
    zone = watched.cells.api.write(aggregates.create, "racks", {"availability_zone": "red"})
    watched.cells.api.write(aggregates.add_host, zone.id, "west-host")
    leased = watched.site.leased(fleet.spec(fleet.flavor(1, 64, 1), availability_zone="red"))
    job = checked_job(fleet.CONTEXT, leased, list(leased.fences))
    known = watched.freshness.topology_epochs(look=True)
    mono = time.monotonic()
    now = PlanContext(mono=mono, wall=time.time(), alive_since=0.0, young=False, mapped_since=mono, ages={}, began=0.0)

    class Overtaken(ClaimPlanner):
        def plan_jobs(
            self, changes: Sequence[Inventory], standings: Sequence[Standing], groups: Sequence[GroupSlots]
        ) -> Collection[int]:
            wanted = super().plan_jobs(changes, standings, groups)
            with ThreadPoolExecutor(1) as other:
                other.submit(watched.cells.api.write, aggregates.set_metadata, zone.id, {"availability_zone": "blue"}).result()
            return wanted

    planner = Overtaken(watched.table, load_driver(SLOW), watched.cursor, [job], now)
    with pytest.raises(claims.Outdated):
        claims.Ledger(watched.cells.api, "scheduler").write(claims.claim_hosts, [job.claim_request], planner, known)
    assert not watched.site.claimed()


def test_zones_changing_constantly_have_only_their_servers(watched: Watched) -> None:
    """The zone changes whenever it may. Each server is then in the zone that it was asked for."""
    api = watched.cells.api
    zone = api.write(aggregates.create, "racks", {"availability_zone": "red"})
    for host in ("west-host", "east-host"):
        api.write(aggregates.add_host, zone.id, host)
    stop, changes = threading.Event(), 0

    def change() -> None:
        nonlocal changes
        while not stop.is_set():
            with suppress(errors.Conflict):
                api.write(aggregates.set_metadata, zone.id, {"availability_zone": ("red", "blue")[changes % 2]})
                changes += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(20):
            asked = fleet.spec(fleet.flavor(1, 64, 1), availability_zone="red")
            with suppress(errors.NoValidHost, errors.Conflict):
                watched.site.boot(watched.scheduler, asked)
                assert api.read(aggregates.get, zone.id).availability_zone == "red"
            watched.site.ledger.write(claims.release_claims, list(watched.site.claimed()))
    finally:
        stop.set()
        thread.join()
    assert changes


def test_a_selection_succeeds_despite_constant_operator_changes(watched: Watched) -> None:
    """What rises all the time must not keep anybody waiting: then the plan is made on what was read last."""
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            watched.cells.api.write(bump_epoch, Epoch.AGGREGATES)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        assert watched.hosts(8) <= {"east-host", "west-host"}
    finally:
        stop.set()
        thread.join()


class OvertakenReader:
    """Reads as ``watched`` does. After the first look at the topology, a cell is taken out of use."""

    def __init__(self, watched: Watched) -> None:
        self.looks: list[bool] = []
        self._watched = watched
        self.current_view = watched.freshness.current_view
        self.usable_flavors = watched.freshness.usable_flavors
        self.hurry_cells = watched.freshness.hurry_cells

    def topology_epochs(self, *, look: bool) -> Mapping[str, int]:
        known = self._watched.freshness.topology_epochs(look=look)
        if not self.looks:
            self._watched.turn(self._watched.east, CellState.DISABLED)
        self.looks.append(look)
        return known


def test_a_change_overtaking_the_transaction_is_planned_on(watched: Watched) -> None:
    """The cell is taken out after the process looked, and before its transaction reads the log of claims."""
    reader = OvertakenReader(watched)
    watched.scheduler = watched.make_scheduler(reader)
    assert watched.hosts(1) == {"west-host"}
    assert reader.looks == [False, True, False]
