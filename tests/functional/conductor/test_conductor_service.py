"""The conductors as services: doorbells over the bus, a keeper per cell, and a stop that leaves nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from cells.administration import NewCell, create_cell
from conductor.apply import Applier
from conductor.feed_follower import FeedFollower, FeedFollowers, FeedSettings
from conductor.main import CellConductorService, SuperConductorService
from db.api.claims import claims
from db.api.deployment import cell_mappings, host_mappings
from db.cell import compute_nodes, instances
from db.sql.sync import sync_schema
from objects.cell import CELL0_UUID, HostMapping
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from rpc.super_conductor import SuperConductorClient
from service.periodic import wait_until
from tests.support.conductor_process import Conductor
from tests.support.ground import USUAL, on
from tests.support.world import PATIENCE, QUICK, World, world_fixture

CONTEXT = RequestContext(request_id="req-test")
SLOW = msgspec.structs.replace(QUICK, sweep_interval=3600.0, feed_interval=3600.0, reap_interval=3600.0)
"""Settings under which no sweep comes round within a test, after its first one."""


cloud = world_fixture({"cell1": ["a1"], "cell2": ["b1"]}, USUAL)


class TestService:
    @on("cloud", "lite")  # it counts threads, and those of a test before may still be ending elsewhere
    def test_doorbells_spare_the_wait_for_the_sweeps(self, cloud: World) -> None:
        cloud.start_conductor(SLOW)
        assert wait_until(lambda: len(_sweepers()) >= 4, PATIENCE)
        time.sleep(0.2)  # the first round of the sweeps is over
        spec = cloud.accept(2)
        client = SuperConductorClient(cloud.bus("api"))
        client.schedule_and_build_instances(CONTEXT, spec.batch_id)
        assert wait_until(lambda: not cloud.requests(), PATIENCE)
        uuids = cloud.uuids(spec)
        for uuid in uuids:
            cloud.delete(uuid)
        client.delete_instances(CONTEXT, uuids)
        assert wait_until(lambda: {str(cloud.row(uuid).state) for uuid in uuids} == {"deleted"}, PATIENCE)

    @on("cloud", "lite")  # it counts threads, and those of a test before may still be ending elsewhere
    def test_stopped_services_do_nothing_and_leave_no_thread(self, cloud: World) -> None:
        """Apart from those of the scheduler, which goes on."""
        before = {thread.name for thread in threading.enumerate()}
        conductor = cloud.conductor("service")
        services: list[SuperConductorService | CellConductorService] = [
            SuperConductorService(QUICK, conductor.registry, conductor.database, conductor.bus),
            *(CellConductorService(QUICK, name, cloud.databases[name], cloud.buses[name]) for name in cloud.cells),
        ]
        for service in services:
            service.start()
        cloud.accept()
        assert wait_until(lambda: not cloud.requests(), PATIENCE)
        for service in services:
            service.stop()
        left = {thread.name for thread in threading.enumerate()} - before
        assert {
            name for name in left if name.startswith(("keep-", "sweep-", "queue", "deletes", "cells", "reaper", "build"))
        } == set()
        spec = cloud.accept()
        assert not wait_until(lambda: not cloud.requests(), 0.2)
        assert len(cloud.uuids(spec)) == 1


def _sweepers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name in ("queue", "deletes", "cells", "reaper")]


class TestKeepers:
    @pytest.fixture
    def keepers(self, cloud: World, conductor: Conductor) -> Iterator[FeedFollowers]:
        made = FeedFollowers(conductor.context, FeedSettings(settle_age=0.01, interval=0.02))
        made.run_round()
        yield made
        made.stop()

    def tell(self, cloud: World, cell: str, host: str, vcpus: int) -> None:
        node = ComputeNode(host=host, node=host, vcpus=vcpus, memory_mb=65536, disk_gb=1000)
        cloud.databases[cell].write(compute_nodes.store_node, node, time.time())

    def capacity(self, cloud: World, host: str) -> float | None:
        return next((row.cap_vcpus for row in cloud.api.read(claims.read_all) if row.host == host), None)

    def test_every_cell_is_kept_cell0_too(self, cloud: World, conductor: Conductor, keepers: FeedFollowers) -> None:
        for cell, host in (("cell1", "a1"), ("cell2", "b1")):
            self.tell(cloud, cell, host, 50)
        assert wait_until(lambda: self.capacity(cloud, "a1") == self.capacity(cloud, "b1") == 200.0, PATIENCE)
        driven = conductor.lease(cloud.accept(2).batch_id)
        driven.stage_in_cell0("too late")
        for uuid in driven.uuids:
            cloud.delete(uuid)
        assert wait_until(lambda: [cloud.rows(uuid) for uuid in driven.uuids] == [{}, {}], PATIENCE)
        handed = conductor.drive(cloud.accept(2), upto="handed over")
        assert wait_until(lambda: {str(cloud.row(uuid).state) for uuid in handed.uuids} == {"scheduled"}, PATIENCE)

    def test_a_new_cell_is_served_from_next_look(self, cloud: World, conductor: Conductor, keepers: FeedFollowers) -> None:
        url = cloud.folder.database_url("cell3")
        sync_schema(url, "cell")
        mapping = create_cell(cloud.api, NewCell(name="cell3", database_url=url, transport_url=cloud.folder.bus_url("cell3")))
        cloud.api.write(host_mappings.add_mappings, [HostMapping(host="c1", cell_uuid=mapping.uuid)], time.time())
        keepers.run_round()
        conductor.cell("cell3").write(
            compute_nodes.store_node, ComputeNode(host="c1", node="c1", vcpus=2, memory_mb=1, disk_gb=1), time.time()
        )
        assert wait_until(lambda: self.capacity(cloud, "c1") == 8.0, PATIENCE)

    @on("cloud", "lite")  # it counts threads, too
    def test_a_removed_cell_has_no_keeper(self, cloud: World, conductor: Conductor, keepers: FeedFollowers) -> None:
        cell = conductor.cell("cell2")
        assert wait_until(lambda: "keep-cell2" in {t.name for t in threading.enumerate()}, PATIENCE)
        cloud.api.write(host_mappings.delete, "b1")
        cloud.api.write(cell_mappings.delete, cell.uuid)
        conductor.registry.refresh_cells()
        keepers.run_round()
        assert "keep-cell2" not in {t.name for t in threading.enumerate()}
        self.tell(cloud, "cell1", "a1", 50)
        assert wait_until(lambda: self.capacity(cloud, "a1") == 200.0, PATIENCE)

    def test_without_cell0_the_other_cells_are_served(self, cloud: World, conductor: Conductor, keepers: FeedFollowers) -> None:
        cloud.api.write(cell_mappings.delete, CELL0_UUID)
        conductor.registry.refresh_cells()
        keepers.run_round()
        keepers.run_round()
        self.tell(cloud, "cell1", "a1", 50)
        assert wait_until(lambda: self.capacity(cloud, "a1") == 200.0, PATIENCE)

    def test_a_failing_cell_delays_no_other_and_recovers(self, cloud: World, conductor: Conductor, keepers: FeedFollowers) -> None:
        conductor.databases["cell2"].away = True
        assert wait_until(lambda: conductor.cell("cell2").silent_since is not None, PATIENCE)
        for cell, host in (("cell1", "a1"), ("cell2", "b1")):
            self.tell(cloud, cell, host, 50)
        assert wait_until(lambda: self.capacity(cloud, "a1") == 200.0, PATIENCE)
        assert self.capacity(cloud, "b1") == 64.0
        conductor.databases["cell2"].away = False
        assert wait_until(lambda: self.capacity(cloud, "b1") == 200.0, PATIENCE)


def test_an_overtaken_keeper_still_settles_and_reads(cloud: World, conductor: Conductor) -> None:
    """Another process has applied the page that it had just read."""
    keeper = FeedFollower(conductor.context, conductor.cell("cell1"), FeedSettings(settle_age=0.0))
    assert keeper.keep_up() is False
    driven = conductor.drive(cloud.accept(2, force_hosts=("a1",)), upto="handed over")
    ended, staged = driven.uuids
    cloud.databases["cell1"].write(instances.delete, [ended], time.time())
    other = cloud.conductor("two")
    Applier(other.ledger, other.cell("cell1")).apply_page()
    assert keeper.keep_up() is False
    assert str(cloud.row(staged).state) == "scheduled"
    cloud.databases["cell1"].write(instances.delete, [staged], time.time())
    keeper.keep_up()
    assert {cloud.mapped(uuid).state for uuid in driven.uuids} == {"deleted"}


def test_a_cell_conductor_serves_agents_and_sweeps(cloud: World, conductor: Conductor) -> None:
    """A real agent builds what was handed over, although nobody of the API level is there."""
    cloud.start_cells()
    cloud.start_agent("a1")  # first: RabbitMQ drops an order to a host that was never there, and nobody is here to settle it
    driven = conductor.drive(cloud.accept(3, force_hosts=("a1",)), upto="ordered")

    def states() -> set[str]:
        return {str(row.state) for row in cloud.databases["cell1"].read(instances.read, driven.uuids)}

    assert wait_until(lambda: states() == {"active"}, PATIENCE)
    for uuid in driven.uuids:
        cloud.delete(uuid)
    conductor.deleter.run_round()
    assert wait_until(lambda: states() == {"deleted"}, PATIENCE)
