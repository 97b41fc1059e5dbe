"""Plans of moves that empty hosts, on a table that shows claims of NUMA nodes."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np

from db.api.displaced import ClaimedBody, DisplacedServers
from db.api.movable import MovableServers
from objects import numa
from objects.numa import HostNumaNode
from objects.spec import RequestSpec
from scheduler.plan import capacity
from scheduler.plan.job import PlanContext
from scheduler.plan.rebalance import RebalancePlan, Rebalancer, movers_of
from scheduler.table.host_table import HostTable
from tests.support import fleet

NODES = (HostNumaNode(vcpus=8, memory_mb=8192), HostNumaNode(vcpus=8, memory_mb=8192))
SERVER = msgspec.structs.replace(fleet.flavor(4, 4096, 0), extra_specs={})


def moment() -> PlanContext:
    now = time.monotonic()
    return PlanContext(now, time.time(), now - 60.0, young=False, mapped_since=now, ages={})


def host(name: str) -> Any:
    return fleet.node(name, vcpus=16, memory_mb=16384, numa_nodes=NODES)


def with_servers(*tied: tuple[int, ...]) -> tuple[HostTable, dict[int, list[str]]]:
    """Hosts, in two cells by turns, each with a server on each of these nodes; and the servers by inventory."""
    made = fleet.table([host(f"h{n}") for n in range(len(tied))])
    servers: dict[int, list[str]] = {}
    for n, nodes in enumerate(tied):
        used: dict[str, int] = {}
        for node in nodes:
            for name, amount in numa.taken((node,), SERVER.vcpus, SERVER.memory_mb).items():
                used[name] = used.get(name, 0) + amount
        key = int(made.inventory[n])
        count = len(nodes)
        row = fleet.inventory(
            key,
            host(f"h{n}"),
            made.cells[int(made.cell[n])].uuid,
            2,
            used_vcpus=4 * count,
            used_memory_mb=4096 * count,
            instances=count,
            used_resources=used,
        )
        made.set_inventory(row, now=2.0)
        servers[key] = [f"server {n}.{number}" for number in range(count)]
    return made, servers


def planned(made: HostTable, servers: dict[int, list[str]], sources: list[int], allowed: int) -> tuple[RebalancePlan, list[int]]:
    """The plan, and how many more such servers each host that takes any would take after it. Everything is given back then."""
    spec: RequestSpec = fleet.spec(SERVER)
    uuids = [(uuid, key) for key, some in servers.items() for uuid in some]
    bodies = tuple(
        ClaimedBody(uuid=uuid, server_uuid=uuid, name=uuid, batch_id=spec.batch_id, inventory_id=key) for uuid, key in uuids
    )
    homes = {int(made.inventory[n]): (made.hosts[n], made.cells[int(made.cell[n])].uuid) for n in range(made.size)}
    found = MovableServers(
        claims=DisplacedServers(bodies=bodies, specs={spec.batch_id: spec}, slots=()),
        specs={uuid: spec for uuid, _ in uuids},
        hosts={uuid: homes[key] for uuid, key in uuids},
        live=frozenset(),
        kept={},
    )
    driver = fleet.driver()
    rebalancer = Rebalancer(made, driver, moment(), ())
    with made.tentative():
        plan = rebalancer.plan(np.array(sources), movers_of(fleet.CONTEXT, found), allowed)
        left = capacity.room(made, driver, fleet.request(spec, made)).counts.tolist()
        rebalancer.undo()
    return plan, left


def room(made: HostTable) -> list[int]:
    counts: list[int] = capacity.room(made, fleet.driver(), fleet.request(fleet.spec(SERVER), made)).counts.tolist()
    return counts


def test_a_host_is_emptied_with_its_numa_nodes() -> None:
    made, servers = with_servers((0, 1), (), (0, 0))
    before = room(made)
    plan, left = planned(made, servers, [0], 2)
    assert [(move.source, move.destination) for move in plan.moves] == [("h0", "h2"), ("h0", "h2")]
    assert plan.rows == (0,)
    assert left == [4, 4]
    assert room(made) == before == [2, 4, 2]


def test_a_plan_that_fails_leaves_nothing_taken() -> None:
    made, servers = with_servers((0, 1, 0), (), (0, 1))
    before = room(made)
    plan, left = planned(made, servers, [0], 3)
    assert plan.moves == ()
    assert left == room(made) == before == [1, 4, 2]
