"""A boot just after ``host move``: whoever knows the host in its old cell still looks again, and buries nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cells.registry import CellRegistry
from conductor.placement import Placed
from db.api.deployment import host_mappings, host_removal
from db.api.queue import leases
from objects.cell import CELL0_UUID
from objects.selection import Selection
from tests.support.conductor_process import REGISTRY, Conductor
from tests.support.ground import USUAL
from tests.support.world import World, world


def stale(cloud: World) -> tuple[Conductor, dict[str, str]]:
    """A super conductor that looks for host mappings every half a minute."""
    made = cloud.conductor("stale")
    settings = msgspec.structs.replace(REGISTRY, poll_interval=30.0)
    made.registry = CellRegistry(made.database, settings, open_database=made._open_database, open_bus=made._open_bus)
    made.builder.destinations._registry = made.registry
    made.registry.refresh_cells()
    return made, {cell.name: cell.uuid for cell in made.registry.list_cells()}


def chosen(batch: leases.LeasedBatch, host: str, cell_uuid: str) -> list[tuple[leases.LeasedRequest, list[Selection]]]:
    [request] = batch.requests
    return [(request, [Selection(host=host, node=host, cell_uuid=cell_uuid, fence=request.fence)])]


@pytest.mark.parametrize("on", USUAL)
def test_a_host_that_moved_is_looked_for_again(tmp_path: Path, on: str) -> None:
    with world(tmp_path, {"cell1": ["a1"], "cell2": ["b1"]}, on, embedded=True) as cloud:
        made, cells = stale(cloud)
        assert made.registry.of_host("a1").name == "cell1"
        cloud.api.write(host_removal.to_cell, "a1", cells["cell1"], cells["cell2"])
        spec = cloud.accept()
        [batch] = cloud.api.write(leases.lease_batches, "stale", [spec.batch_id], cloud.api.current_time(), 30.0)
        [placed] = made.builder.destinations.map_to_cells(batch, chosen(batch, "a1", cells["cell2"]))
        assert isinstance(placed, Placed)
        assert placed.cell.name == "cell2"


@pytest.mark.parametrize("on", USUAL)
def test_a_selection_in_the_old_cell_is_repeated(tmp_path: Path, on: str) -> None:
    with world(tmp_path, {"cell1": ["a1"], "cell2": ["b1"]}, on, embedded=True) as cloud:
        made, cells = stale(cloud)
        cloud.api.write(host_removal.to_cell, "a1", cells["cell1"], cells["cell2"])
        made.registry.refresh_cells()
        spec = cloud.accept()
        [batch] = cloud.api.write(leases.lease_batches, "stale", [spec.batch_id], cloud.api.current_time(), 30.0)
        assert made.builder.destinations.map_to_cells(batch, chosen(batch, "a1", cells["cell1"])) == []
        [uuid] = cloud.uuids(spec)
        assert cloud.mapped(uuid).cell_uuid is None, "nobody has buried it"
        assert uuid in cloud.requests()


@pytest.mark.parametrize("on", USUAL)
def test_a_host_that_is_mapped_nowhere_is_refused(tmp_path: Path, on: str) -> None:
    with world(tmp_path, {"cell1": ["a1"], "cell2": ["b1"]}, on, embedded=True) as cloud:
        made, cells = stale(cloud)
        assert cloud.api.read(host_mappings.list_all)
        spec = cloud.accept()
        [batch] = cloud.api.write(leases.lease_batches, "stale", [spec.batch_id], cloud.api.current_time(), 30.0)
        assert made.builder.destinations.map_to_cells(batch, chosen(batch, "nowhere", cells["cell1"])) == []
        [uuid] = cloud.uuids(spec)
        assert cloud.mapped(uuid).cell_uuid == CELL0_UUID
