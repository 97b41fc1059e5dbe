"""A host that is gone for good is forgotten everywhere, unless something is still there."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from db.api.deployment import aggregates, host_mappings
from db.api.deployment import host_removal as api_host_removal
from db.api.rows import tables
from db.cell import compute_nodes, services
from db.cell import host_removal as cell_host_removal
from objects import errors
from tests.support.ground import CHOSEN, GROUNDS, on
from tests.support.world import World, world_fixture

COMPUTE = "superconductor-compute"
NO_WAIT = -1.0
"""Seconds of silence that any agent has behind it."""


cloud = world_fixture({"cell1": ["a1", "a2"]}, CHOSEN, embedded=True)


def known(cloud: World, host: str) -> dict[str, bool]:
    inventories = cloud.api.read(lambda tx: tx.execute(sa.select(tables.inventories.c.host)).scalars().all())
    cell = cloud.databases["cell1"]
    return {
        "mapping": host in {mapping.host for mapping in cloud.api.read(host_mappings.list_all)},
        "inventory": host in inventories,
        "aggregate": any(host in aggregate.hosts for aggregate in cloud.api.read(aggregates.list_all)),
        "node": host in {node.host for node in cell.read(compute_nodes.list_all)},
        "service": host in {service.host for service in cell.read(services.list_all)},
    }


@on("cloud", *GROUNDS)
def test_nothing_is_left_of_a_host_without_servers(cloud: World) -> None:
    made = cloud.api.write(aggregates.create, "fast")
    cloud.api.write(aggregates.add_host, made.id, "a1")
    cloud.api.write(aggregates.add_host, made.id, "a2")
    assert all(known(cloud, "a1").values())
    for _ in range(2):  # as if it had been interrupted in between
        cloud.databases["cell1"].write(cell_host_removal.from_cell, "a1", COMPUTE, NO_WAIT)
    cloud.api.write(api_host_removal.from_api, "a1")
    assert not any(known(cloud, "a1").values())
    assert all(known(cloud, "a2").values())
    with pytest.raises(errors.NotFound, match="Host 'a1' not found"):
        cloud.api.write(api_host_removal.from_api, "a1")


def test_a_running_agent_keeps_its_host(cloud: World) -> None:
    with pytest.raises(errors.Conflict, match="Host 'a1' is up: stop its agent first"):
        cloud.databases["cell1"].write(cell_host_removal.from_cell, "a1", COMPUTE, 60.0)
    assert known(cloud, "a1")["service"]


def test_servers_and_claims_keep_it(cloud: World) -> None:
    [uuid] = cloud.conductor("one").drive(cloud.accept(), upto="claimed").uuids
    [host] = cloud.evidence().claims.values()
    with pytest.raises(errors.Conflict, match=f"Host '{host}' is claimed by 1 servers"):
        cloud.api.write(api_host_removal.from_api, host)
    cloud.start()
    cloud.settle()
    host = cloud.row(uuid).host or ""
    with pytest.raises(errors.Conflict, match=f"Host '{host}' has 1 servers"):
        cloud.databases["cell1"].write(cell_host_removal.from_cell, host, COMPUTE, NO_WAIT)
    assert all(found for what, found in known(cloud, host).items() if what != "aggregate")
