"""Cells are drained, deleted and created beside processes that run, which follow by themselves."""

from __future__ import annotations

from cells.administration import CellChange, NewCell, change_cell, create_cell, delete_cell, find_cell
from cells.discovery import discover_hosts
from objects.cell import CellState
from service.periodic import wait_until
from tests.support import fleet
from tests.support.ground import USUAL
from tests.support.world import PATIENCE, World, world_fixture

SMALL = fleet.flavor(vcpus=1, memory_mb=256, root_gb=0)


cloud = world_fixture({"cell1": ["a1"], "cell2": ["b1"]}, USUAL, prepare=World.start)


def boot(cloud: World, host: str | None = None) -> str:
    """How a boot ends that nobody rang for."""
    [uuid] = cloud.uuids(cloud.accept(size=SMALL, force_hosts=() if host is None else (host,)))
    assert wait_until(lambda: cloud.mapped(uuid).state != "building", PATIENCE), cloud.mapped(uuid)
    return cloud.mapped(uuid).state


def test_a_cell_disappears_and_returns_during_work(cloud: World) -> None:
    assert boot(cloud, "a1") == "active"
    before = find_cell(cloud.api, "cell2")
    change_cell(cloud.api, "cell2", CellChange(state=CellState.DRAINING))
    assert boot(cloud, "b1") == "error", "from the commit on"
    delete_cell(cloud.api, "cell2", with_hosts=True)
    assert boot(cloud, "b1") == "error"
    assert boot(cloud) == "active"
    again = NewCell(name="again", database_url=before.database_url, transport_url=before.transport_url)
    made = create_cell(cloud.api, again)
    found = discover_hosts(cloud.keeper.registry, cloud.api)
    mapped = [(mapping.host, mapping.cell_uuid) for mapping in found.mapped]
    assert mapped in ([("b1", made.uuid)], []), "its cell's feed may have been followed first"
    assert wait_until(lambda: boot(cloud, "b1") == "active", PATIENCE)
    cloud.settle()
