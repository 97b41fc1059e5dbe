"""Plans of moves that empty hosts, on a table that shows claims of NUMA nodes."""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec
import numpy as np
import pytest

from db.api.claims.displaced import ClaimedBody, DisplacedServers
from db.api.operations.movable import MovableServers
from objects import numa
from objects.group import GroupPolicy
from objects.numa import HostNumaNode
from objects.spec import RequestSpec
from scheduler.engine import capacity, engine
from scheduler.engine.job import PlanContext
from scheduler.table.host_table import HostTable
from scheduler.what_if import rebalance
from scheduler.what_if.rebalance import RebalancePlan, Rebalancer, movers_of
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
            for name, amount in numa.taken_by_class((node,), SERVER.vcpus, SERVER.memory_mb).items():
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
    inventories = made.inventory[sources].tolist()
    movers = movers_of(fleet.CONTEXT, movable(made, servers, spec))
    rebalancer = Rebalancer(made, fleet.driver(), moment(), (), inventories, movers, allowed)
    rebalancer.run()
    with rebalancer.show_plan():
        return rebalancer.plan_so_far, capacity.host_room(made, fleet.driver(), fleet.request(spec, made)).counts.tolist()


def movable(made: HostTable, servers: dict[int, list[str]], spec: RequestSpec) -> MovableServers:
    """These servers, by inventory, all of which may be moved."""
    uuids = [(uuid, key) for key, some in servers.items() for uuid in some]
    bodies = tuple(
        ClaimedBody(uuid=uuid, server_uuid=uuid, name=uuid, batch_id=spec.batch_id, inventory_id=key) for uuid, key in uuids
    )
    homes = {int(made.inventory[n]): (made.hosts[n], made.cells[int(made.cell[n])].uuid) for n in range(made.size)}
    return MovableServers(
        claims=DisplacedServers(bodies=bodies, specs={spec.batch_id: spec}, slots=()),
        specs={uuid: spec for uuid, _ in uuids},
        hosts={uuid: homes[key] for uuid, key in uuids},
        live=frozenset(),
        kept={},
    )


def room(made: HostTable) -> list[int]:
    counts: list[int] = capacity.host_room(made, fleet.driver(), fleet.request(fleet.spec(SERVER), made)).counts.tolist()
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


class BusyFleet:
    """Hosts with servers of one size, on which others claim and release room while moves are planned."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.nodes = [fleet.node(f"h{n}", vcpus=16, memory_mb=65536, cpu_allocation_ratio=1.1) for n in range(12)]
        self.table, self.twin = fleet.table(self.nodes), fleet.table(self.nodes)
        self.servers: dict[int, list[str]] = {}
        self.generations = [1] * len(self.nodes)
        for n in range(len(self.nodes)):
            self.servers[int(self.table.inventory[n])] = [f"server {n}.{number}" for number in range(self.chance.randrange(5))]
            self.write(n, len(self.servers[int(self.table.inventory[n])]))

    def write(self, n: int, instances: int) -> None:
        """The ledger's row of a host, in the table of the plan and in another one."""
        self.generations[n] += 1
        cell = self.table.cells[int(self.table.cell[n])].uuid
        usage = {"used_vcpus": 3 * instances, "used_memory_mb": 4096 * instances, "instances": instances}
        for made in (self.table, self.twin):
            made.set_inventory(fleet.inventory(n + 1, self.nodes[n], cell, self.generations[n], **usage), now=2.0)

    def meanwhile(self) -> None:
        """Some host may change."""
        self.check()
        if self.chance.random() < 0.15:
            n = self.chance.randrange(len(self.nodes))
            self.write(n, max(int(self.twin.instances[n]) + self.chance.choice((-1, 1)), 0))

    def check(self) -> None:
        """The table shows nothing of the plan."""
        for name in ("free_vcpus", "free_memory_mb", "instances", "building"):
            assert getattr(self.table, name).tolist() == getattr(self.twin, name).tolist()


@pytest.mark.parametrize("seed", range(40))
def test_a_planned_move_is_possible_despite_later_changes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance, "HOLD_S", 0.0)
    busy, size = BusyFleet(seed), fleet.flavor(3, 4096, 0)
    spec = fleet.spec(size, group=fleet.group(GroupPolicy.ANTI_AFFINITY) if seed % 4 == 0 else None)
    movers = movers_of(fleet.CONTEXT, movable(busy.table, busy.servers, spec))
    sources = sorted(busy.servers, key=lambda key: len(busy.servers[key]))
    rebalancer = Rebalancer(busy.table, fleet.driver(), moment(), (), sources, movers, 30)
    rebalancer.run(busy.meanwhile)
    with rebalancer.show_plan():
        plan = rebalancer.plan_so_far
        assert [busy.table.instances[row] for row in plan.rows] == [0] * len(plan.rows)
    busy.check()
    assert len({move.server for move in plan.moves}) == len(plan.moves)
    row_of = {name: row for row, name in enumerate(busy.twin.hosts)}
    for move in plan.moves:  # in the fleet as it is now
        to, source = row_of[move.destination], row_of[move.source]
        assert to not in plan.rows
        assert engine.fitting_rows(fleet.driver(), busy.twin, fleet.request(fleet.spec(size), busy.twin), np.array([to]))[0]
        for row, more in ((to, 1), (source, -1)):
            busy.write(row, int(busy.twin.instances[row]) + more)
    assert all(busy.twin.instances[row] == 0 for row in plan.rows)
