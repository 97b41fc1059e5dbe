"""The host table follows cells, mappings, zones and heartbeats, and forgives a cell that does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from cells.registry import CellRegistry
from db.api.claims import claims
from db.api.deployment import aggregates, host_mappings
from db.cell import compute_nodes, feed, services
from db.cell.tables import compute_nodes as compute_nodes_table
from db.sql.connection import CellTransaction
from db.sql.engine import Database
from objects.cell import CellMapping, CellState, HostMapping
from objects.process import AGENT_BINARY
from scheduler import table_updater
from scheduler.claim.cursor import Cursor
from scheduler.engine.surveying import survey
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from scheduler.table_updater import TableUpdater
from service.periodic import wait_until
from tests.support import fleet
from tests.support.cell_databases import Cells
from tests.support.ground import USUAL, Ground, on
from tests.support.region import host, region

FAST = SchedulerSettings(
    service_poll_interval=0.02,
    feed_poll_interval=0.02,
    claims_poll_interval=0.02,
    idle_interval=0.1,
    service_down_time=30.0,
    warm_up=0.0,
)


class Watched:
    """Two cells, and a host table that is kept fresh of them."""

    def __init__(self, cells: Cells, registry: CellRegistry, settings: SchedulerSettings) -> None:
        self.cells, self.registry = cells, registry
        self.east, self.west = cells.add("east"), cells.add("west")
        self.table, self.cursor = HostTable(), Cursor()
        self.settings = settings
        self.freshness = TableUpdater(settings, registry, cells.api, self.table, self.cursor)
        self.ledger = claims.Ledger(cells.api, "conductor")

    def add(self, cell: CellMapping, *hosts: str, mapped: bool = True) -> None:
        """Hosts that report, with a mapping and an inventory."""
        self.cells.report(cell.name, *hosts)
        if mapped:
            mappings = [HostMapping(host=host, cell_uuid=cell.uuid) for host in hosts]
            self.cells.api.write(host_mappings.add_mappings, mappings, time.time())
        with_inventory = [fleet.node(host, vcpus=8) for host in hosts]
        self.ledger.write(claims.set_inventory, with_inventory, cell.uuid)

    def in_cell(self, cell: CellMapping) -> Database:
        return self.cells.ground.open(cell.name)

    def stop_agent(self, cell: CellMapping, host: str) -> None:
        """It says that it stops."""
        beat = services.Beat(host=host, binary=AGENT_BINARY, stopping=True)
        self.in_cell(cell).write(services.record_heartbeats, [beat], time.time())

    def usable(self) -> set[str]:
        """Hosts that a request could be given now."""
        with self.table.lock:
            request = fleet.request(fleet.spec(), self.table, alive_since=time.monotonic() - self.settings.service_down_time)

            return {self.table.hosts[row] for row in survey(self.table, fleet.driver(), request).passing_rows}

    def becomes(self, *hosts: str) -> bool:
        return wait_until(lambda: self.usable() == set(hosts), 10.0)


@pytest.fixture(params=USUAL)
def watch(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Watched]]:
    place = Ground(request.param, tmp_path, embedded=True)
    cells = Cells(tmp_path, place)
    made: list[Watched] = []
    with cells.registry() as registry:

        def start(settings: SchedulerSettings = FAST) -> Watched:
            made.append(Watched(cells, registry, settings))
            return made[-1]

        yield start
        for watched in made:
            watched.freshness.stop()
    place.end(cells.api.dispose_connections, place.release)


def test_hosts_known_at_the_start_are_there_immediately(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.add(watched.east, "e1", "e2")
    watched.add(watched.west, "w1")
    watched.freshness.start()
    assert watched.usable() == {"e1", "e2", "w1"}
    assert all(age is not None for age in watched.freshness.ages_by_cell().values())
    assert watched.freshness.ages_by_cell().keys() == {"east", "west"}


def test_new_hosts_join_once_mapped(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.freshness.start()
    watched.add(watched.east, "e1", mapped=False)
    assert wait_until(lambda: watched.table.find_row("e1", "e1") is not None and len(watched.table) == 1, 90.0)
    assert watched.usable() == set()
    watched.cells.api.write(host_mappings.add_mappings, [HostMapping(host="e1", cell_uuid=watched.east.uuid)], time.time())
    assert watched.becomes("e1")


def test_a_host_mapped_to_another_cell_stays_out(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.add(watched.east, "e1", "stray")
    watched.cells.api.write(host_mappings.delete, "stray")
    watched.cells.api.write(host_mappings.add_mappings, [HostMapping(host="stray", cell_uuid=watched.west.uuid)], time.time())
    watched.freshness.start()
    assert watched.usable() == {"e1"}


def test_a_host_in_two_cells_is_in_neither(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.add(watched.east, "e1", "twin")
    watched.freshness.start()
    assert watched.becomes("e1", "twin")
    watched.cells.report("west", "twin", "w1")
    assert watched.becomes("e1")
    watched.stop_agent(watched.west, "twin")
    assert watched.becomes("e1", "twin")


def test_a_host_mapped_to_another_cell_moves_immediately(watch: Callable[..., Watched]) -> None:
    """Although that cell has told of it before, and does not do so again."""
    watched = watch()
    watched.add(watched.east, "mover")
    watched.cells.report("west", "mover")
    watched.in_cell(watched.east).write(
        services.record_heartbeats, [services.Beat(host="mover", binary=AGENT_BINARY, stopping=True)], time.time()
    )
    watched.freshness.start()
    assert watched.becomes()
    watched.cells.api.write(host_mappings.delete, "mover")
    watched.cells.api.write(host_mappings.add_mappings, [HostMapping(host="mover", cell_uuid=watched.west.uuid)], time.time())
    assert watched.becomes("mover")


def test_a_host_without_inventory_stays_out(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.cells.report("east", "e1")
    watched.cells.api.write(host_mappings.add_mappings, [HostMapping(host="e1", cell_uuid=watched.east.uuid)], time.time())
    watched.freshness.start()
    assert watched.usable() == set()
    watched.ledger.write(claims.set_inventory, [fleet.node("e1")], watched.east.uuid)
    assert watched.becomes("e1")


def test_what_others_claim_is_seen_without_deciding_anything(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.add(watched.east, "e1")
    watched.freshness.start()
    row = watched.table.find_row("e1", "e1")
    watched.ledger.write(claims.set_inventory, [fleet.node("e1", vcpus=64)], watched.east.uuid)
    assert wait_until(lambda: watched.table.cap_vcpus[row or 0] == 64, 90.0)


def test_counts_by_the_agent_are_followed_by_feed(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.add(watched.east, "e1")
    watched.freshness.start()
    node = fleet.node("e1", vcpus=8, vcpus_used=8)
    watched.in_cell(watched.east).write(compute_nodes.store_node, node, time.time())
    assert watched.becomes()


class TestAlive:
    def test_a_silent_host_leaves_and_returns_with_heartbeats(self, watch: Callable[..., Watched]) -> None:
        watched = watch(msgspec.structs.replace(FAST, service_down_time=1.0))
        watched.add(watched.east, "e1", "e2")
        watched.freshness.start()
        east = watched.in_cell(watched.east)

        def only_e1() -> bool:
            east.write(services.record_heartbeats, [services.Beat(host="e1", binary=AGENT_BINARY)])
            return watched.usable() == {"e1"}

        assert wait_until(only_e1, 90.0)

        def both() -> bool:
            east.write(services.record_heartbeats, [services.Beat(host="e1", binary=AGENT_BINARY)])
            east.write(services.record_heartbeats, [services.Beat(host="e2", binary=AGENT_BINARY)])
            return watched.usable() == {"e1", "e2"}

        assert wait_until(both, 90.0)

    def test_at_first_the_record_dates_a_hosts_silence(self, watch: Callable[..., Watched]) -> None:
        watched = watch()
        watched.add(watched.east, "fresh")
        watched.add(watched.west, "stale")
        watched.in_cell(watched.west).write(
            services.record_heartbeats, [services.Beat(host="stale", binary=AGENT_BINARY)], time.time() - 3600
        )
        watched.freshness.start()
        assert watched.usable() == {"fresh"}

    def test_operators_take_hosts_out_and_back(self, watch: Callable[..., Watched]) -> None:
        watched = watch()
        watched.add(watched.east, "e1", "e2", "e3")
        watched.freshness.start()
        east = watched.in_cell(watched.east)
        east.write(services.set_disabled, "e1", AGENT_BINARY, True, "repair", time.time())
        east.write(services.set_forced_down, "e2", AGENT_BINARY, True, time.time())
        assert watched.becomes("e3")
        east.write(services.set_disabled, "e1", AGENT_BINARY, False, None, time.time())
        east.write(services.set_forced_down, "e2", AGENT_BINARY, False, time.time())
        assert watched.becomes("e1", "e2", "e3")

    def test_a_stopping_agents_host_is_excluded_until_back(self, watch: Callable[..., Watched]) -> None:
        watched = watch()
        watched.add(watched.east, "e1", "e2")
        watched.freshness.start()
        east = watched.in_cell(watched.east)
        east.write(services.record_heartbeats, [services.Beat(host="e1", binary=AGENT_BINARY, stopping=True)], time.time())
        assert watched.becomes("e2")
        east.write(services.record_heartbeats, [services.Beat(host="e1", binary=AGENT_BINARY)], time.time())
        assert watched.becomes("e1", "e2")

    def test_a_deleted_service_takes_its_host_out(self, watch: Callable[..., Watched]) -> None:
        watched = watch()
        watched.add(watched.east, "e1", "e2")
        watched.freshness.start()
        watched.in_cell(watched.east).write(services.delete, "e1", AGENT_BINARY)
        assert watched.becomes("e2")


class TestCells:
    def test_a_disabled_cell_takes_no_builds_until_enabled(self, watch: Callable[..., Watched]) -> None:
        watched = watch()
        watched.add(watched.east, "e1")
        watched.add(watched.west, "w1")
        watched.freshness.start()
        watched.cells.change(msgspec.structs.replace(watched.east, state=CellState.DISABLED))
        assert watched.becomes("w1")
        watched.cells.change(msgspec.structs.replace(watched.east, state=CellState.ENABLED))
        assert watched.becomes("e1", "w1")

    def test_a_cell_added_later_is_watched(self, watch: Callable[..., Watched]) -> None:
        watched = watch()
        watched.freshness.start()
        north = watched.cells.add("north")
        watched.add(north, "n1")
        assert watched.becomes("n1")

    def test_decisions_of_a_moment_share_one_view(self, watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table_updater, "VIEW_KEPT_S", 60.0)
        watched = watch()
        watched.freshness.start()
        shared = watched.freshness.current_view()
        assert watched.freshness.current_view() is shared
        watched.cells.add("north")
        assert wait_until(lambda: "north" in watched.freshness.current_view().ages, 90.0)
        monkeypatch.setattr(table_updater, "VIEW_KEPT_S", 0.0)
        assert watched.freshness.current_view() is not watched.freshness.current_view()

    def test_zones_are_followed(self, watch: Callable[..., Watched]) -> None:
        watched = watch()
        watched.add(watched.east, "e1")
        watched.freshness.start()
        zone = watched.cells.api.write(aggregates.create, "racks", {"availability_zone": "red"})
        watched.cells.api.write(aggregates.add_host, zone.id, "e1")
        row = watched.table.find_row("e1", "e1") or 0
        assert wait_until(lambda: watched.table.zones[int(watched.table.zone[row])] == "red", 90.0)
        watched.cells.api.write(aggregates.set_metadata, zone.id, {"ssd": "true"})
        assert wait_until(lambda: "ssd" in watched.table.current_aggregates.metadata_of(int(watched.table.aggregation[row])), 90.0)

    @on("watch", "lite")  # its file is taken away
    def test_an_unreachable_cells_hosts_stay_while_views_age(self, watch: Callable[..., Watched], tmp_path: Path) -> None:
        watched = watch(msgspec.structs.replace(FAST, service_down_time=2.0))
        watched.add(watched.east, "e1")
        watched.add(watched.west, "w1")
        watched.freshness.start()
        west = watched.in_cell(watched.west)
        (tmp_path / "east.db").rename(tmp_path / "gone.db")
        (tmp_path / "east.db").mkdir()  # a folder where the file was: nothing can open it
        watched.registry.get(watched.east.uuid).database.dispose_connections()

        def east_is_old() -> bool:
            west.write(services.record_heartbeats, [services.Beat(host="w1", binary=AGENT_BINARY)])
            return (watched.freshness.ages_by_cell()["east"] or 0.0) > 2.0

        assert wait_until(east_is_old, 90.0)
        assert watched.usable() == {"w1"}
        assert watched.freshness.ages_by_cell()["west"] is not None

    def test_a_cell_that_never_answered_holds_up_nobody(
        self, watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(table_updater, "FIRST_READ_TIMEOUT_S", 0.2)
        watched = watch()
        watched.add(watched.east, "e1")
        watched.cells.add_unreachable("broken", f"sqlite:///{watched.cells.folder}/no/such/folder.db")
        watched.freshness.start()
        assert wait_until(lambda: watched.usable() == {"e1"}, 90.0), "on a busy machine the first look may end before it answers"
        assert watched.freshness.ages_by_cell()["broken"] is None
        assert watched.freshness.ages_by_cell().keys() == {"east", "west", "broken"}


def test_a_reader_behind_trimmed_feeds_rereads_the_nodes(watch: Callable[..., Watched]) -> None:
    watched = watch(msgspec.structs.replace(FAST, feed_poll_interval=0.5))
    watched.add(watched.east, "e1", "e2")
    watched.freshness.start()
    east = watched.in_cell(watched.east)

    def change_and_trim(tx: CellTransaction) -> None:
        compute_nodes.store_node(tx, fleet.node("e1", vcpus=8, vcpus_used=8), time.time())
        tx.execute(sa.delete(compute_nodes_table).where(compute_nodes_table.c.host == "e2"))
        feed.trim_events(tx, time.time() + 60)

    east.write(change_and_trim)
    assert watched.becomes()
    assert wait_until(lambda: len(watched.table) == 1, 90.0)


def test_a_zone_created_recently_takes_boots_immediately(tmp_path: Path) -> None:
    with region(tmp_path, [host(f"h{number}") for number in range(3)]) as cloud:
        for number in range(3):
            zone = f"zone{number}"
            cloud.commands.run("aggregate", "create", zone, "--zone", zone, "--host", f"h{number}")
            uuid = cloud.boot(f"in-{zone}", availability_zone=zone)
            assert cloud.wait_for(uuid, "ACTIVE")["OS-EXT-AZ:availability_zone"] == zone
