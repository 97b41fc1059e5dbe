"""NUMA nodes of hosts: who takes a server, which nodes it gets, compared with all that could be done."""

from __future__ import annotations

import random
import time
from functools import cache
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects import numa
from objects.flavor import Flavor
from objects.group import GroupPolicy
from objects.inventory import Standing
from objects.numa import HostNumaNode
from objects.relaxation import Asked
from objects.spec import Image
from scheduler.claim.claim_planner import ClaimPlanner
from scheduler.claim.cursor import Cursor
from scheduler.engine import capacity, engine
from scheduler.engine.job import Job, PlanContext
from scheduler.engine.request_classes import Shapes
from scheduler.engine.surveying import survey
from scheduler.filters.numa import NUMATopologyFilter
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from scheduler.what_if.dry_run import DryRunPlanner
from tests.support import fleet

FILTER = NUMATopologyFilter(SchedulerSettings())
Free = tuple[tuple[int, int], ...]
"""vCPUs and MiB of each node of a host."""


def host(name: str, *nodes: tuple[int, int], **changes: Any) -> Any:
    """A host with these nodes; with none it is as large as two of 8 vCPUs and 32 GiB."""
    sizes = {"vcpus": sum(each[0] for each in nodes), "memory_mb": sum(each[1] for each in nodes)} if nodes else {}
    return fleet.node(name, **sizes, numa_nodes=tuple(HostNumaNode(vcpus=v, memory_mb=m) for v, m in nodes), **changes)


def flavor(vcpus: int, memory_mb: int = 12, nodes: int | None = None, **specs: str) -> Flavor:
    specs |= {} if nodes is None else {"hw:numa_nodes": str(nodes)}
    return msgspec.structs.replace(fleet.flavor(vcpus, memory_mb, 0), extra_specs=specs)


def left(made: HostTable, size: Flavor, more: int = 0, **changes: Any) -> list[str] | None:
    """The hosts that the filter lets pass; None if it is not used."""
    request = fleet.request(fleet.spec(size, **changes), made)
    mask = FILTER.passes(Hosts(made, request, None, more), request)
    return None if mask is None else [made.hosts[row] for row in np.flatnonzero(mask)]


def job_of(size: Flavor, count: int = 1, **changes: Any) -> Job:
    asked = fleet.spec(size, num_instances=count, **changes)
    uuids = tuple(f"{asked.batch_id[:8]}-{n}" for n in range(count))
    return Job(fleet.CONTEXT, msgspec.structs.replace(asked, fences=dict.fromkeys(uuids, 1)), uuids)


def moment() -> PlanContext:
    now = time.monotonic()
    return PlanContext(now, time.time(), now - 60.0, young=False, mapped_since=now, ages={})


def plan(made: HostTable, *jobs: Job, kind: type[ClaimPlanner] = ClaimPlanner) -> ClaimPlanner:
    """As a claim does, on rows that nobody else has changed."""
    planner = kind(made, fleet.driver(), Cursor(), jobs, moment())
    wanted = planner.plan_jobs([], [Standing(needed=job.uuids) for job in jobs], [])
    homes = [row for row in range(made.size) if int(made.inventory[row]) in wanted]
    locked = [
        fleet.inventory(
            int(made.inventory[row]), host(made.hosts[row]), made.cells[int(made.cell[row])].uuid, int(made.generation[row])
        )
        for row in homes
    ]
    assert not planner.confirm_locked(locked)
    planner.finish_plan()
    return planner


class TestWhatIsAsked:
    @pytest.mark.parametrize(
        ("specs", "properties", "count"),
        [
            ({}, {}, 1),
            ({"hw:cpu_policy": "shared"}, {"hw_disk_bus": "scsi"}, 1),
            ({"hw:numa_nodes": "2"}, {}, 2),
            ({}, {"hw_numa_nodes": " 4 "}, 4),
            ({"hw:numa_nodes": "2"}, {"hw_numa_nodes": "2"}, 2),
            ({"hw:numa_nodes": "2"}, {"hw_numa_nodes": "4"}, 0),
            ({"hw:numa_nodes": "3"}, {}, 0),
            ({"hw:numa_nodes": "two"}, {}, 0),
            ({"hw:numa_nodes": "0"}, {}, 0),
            ({"hw:numa_nodes": "2", "hw:numa_cpus.0": "0-2", "hw:numa_cpus.1": "3-7"}, {}, 0),
            ({"hw:numa_nodes": "2"}, {"hw_numa_mem.0": "1024", "hw_numa_mem.1": "3072"}, 0),
        ],
    )
    def test_the_flavor_or_image_decides_the_node_count(
        self, specs: dict[str, str], properties: dict[str, str], count: int
    ) -> None:
        assert numa.requested_nodes(specs, properties, 8, 4096) == count

    def test_a_host_divides_its_capacity_like_its_nodes(self) -> None:
        node = host("h", (24, 100_000), (8, 50_000), cpu_allocation_ratio=2.0, reserved_memory_mb=30_000)
        assert node.total_capacity.resources == {
            "NUMA0_VCPU": 48,
            "NUMA0_MEMORY_MB": 80_000,
            "NUMA1_VCPU": 16,
            "NUMA1_MEMORY_MB": 40_000,
        }
        assert (node.total_capacity.vcpus, node.total_capacity.memory_mb) == (64, 120_000)


class TestFilter:
    def test_without_nodes_it_is_not_used(self) -> None:
        assert left(fleet.table([host("h")]), flavor(8, nodes=2)) is None

    def test_a_server_is_on_one_node_by_default(self) -> None:
        made = fleet.table([host("h1", (8, 64), (8, 64)), host("h2", (16, 128)), host("h3", (12, 64), (4, 64)), host("h4")])
        assert left(made, flavor(8)) == ["h1", "h2", "h3", "h4"]
        assert left(made, flavor(10)) == ["h2", "h3", "h4"]
        assert left(made, flavor(16)) == ["h2", "h4"]
        assert left(made, flavor(16, nodes=2)) == ["h1", "h4"]
        assert left(made, flavor(8, 130, nodes=2)) == ["h4"]
        assert left(made, flavor(8, nodes=2)) == ["h1", "h3", "h4"]

    def test_an_image_may_ask_too(self) -> None:
        made = fleet.table([host("h1", (8, 64), (8, 64)), host("h2", (16, 128))])
        image = Image(id="i", properties={"hw_numa_nodes": "2"})
        assert left(made, flavor(16, 2), image=image) == ["h1"]

    def test_indivisible_servers_go_to_hosts_without_nodes(self) -> None:
        made = fleet.table([host("h1", (8, 64), (8, 64)), host("h2")])
        assert left(made, flavor(3, nodes=2)) == ["h2"]
        assert left(made, flavor(4, 4, nodes=3)) == ["h2"]

    def test_untied_servers_count_on_every_node(self) -> None:
        nodes = [host("h1", (8, 64), (8, 64))]
        made = fleet.table(nodes)
        claimed = fleet.inventory(
            1, nodes[0], fleet.CELLS[0], 2, used_vcpus=5, used_memory_mb=30, used_resources={"NUMA1_VCPU": 3, "NUMA1_MEMORY_MB": 10}
        )
        made.set_inventory(claimed, now=1.0)
        for size, passes in ((6, True), (7, False)):
            assert left(made, flavor(size)) == (["h1"] if passes else [])
        assert left(made, flavor(1, 45)) == []  # 20 MiB are of no node
        assert left(made, flavor(1, 44)) == ["h1"]
        assert left(made, flavor(6, nodes=2)) == ["h1"]
        assert left(made, flavor(8, nodes=2)) == []  # node 1: 8 - 3 - 2
        made.set_nodes(fleet.CELLS[0], [msgspec.structs.replace(nodes[0], vcpus_used=9)])
        assert left(made, flavor(2)) == ["h1"]  # unknown guests have 4 more, on no node
        assert left(made, flavor(3)) == []

    def test_reported_nodes_replace_former_ones(self) -> None:
        nodes = [host("h1", (8, 64), (8, 64)), host("h2", (8, 64), (8, 64))]
        made = fleet.table(nodes)
        assert left(made, flavor(16)) == []
        plain = msgspec.structs.replace(nodes[0], numa_nodes=())
        made.set_inventory(fleet.inventory(1, plain, fleet.CELLS[0], 2), now=1.0)
        assert left(made, flavor(16)) == ["h1"]
        three = host("h2", (8, 64), (8, 64), (8, 64))
        made.set_inventories([fleet.inventory(2, three, fleet.CELLS[1], 2)], now=2.0)
        assert left(made, flavor(24, nodes=3)) == ["h1", "h2"]
        made.set_inventory(fleet.inventory(1, nodes[0], fleet.CELLS[0], 3), now=3.0)
        assert left(made, flavor(24, nodes=3)) == ["h2"]

    @pytest.mark.parametrize(
        ("size", "reason"),
        [
            (flavor(9), "not enough room on one NUMA node"),
            (flavor(10, nodes=2), "not enough room on 2 NUMA nodes of one host"),
            (flavor(9, 3, nodes=3), "no host reports 3 NUMA nodes"),
            (flavor(3, nodes=2), "it cannot be divided into equal NUMA nodes"),
        ],
    )
    def test_a_refusal_says_what_is_missing(self, size: Flavor, reason: str) -> None:
        made = fleet.table([host("h1", (8, 64), (4, 64))])
        job = job_of(size)
        plan(made, job)
        assert job.decision is not None
        told = f"No valid host was found: of 1 hosts 0 were left by NUMATopologyFilter ({reason})."
        assert job.decision.message.startswith(told)


# -- compared with all that could be done --------------------------------------------------------------------------------------


@cache
def fit(free: Free, part: tuple[int, int], nodes: int, count: int) -> bool:
    """Whether so many servers fit, by trying all ways."""
    if not count:
        return True
    for chosen in combinations(range(len(free)), nodes):
        if all(free[n][0] >= part[0] and free[n][1] >= part[1] for n in chosen):
            rest = tuple((v - part[0] * (n in chosen), m - part[1] * (n in chosen)) for n, (v, m) in enumerate(free))
            if fit(tuple(sorted(rest)), part, nodes, count - 1):
                return True
    return False


SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(st.lists(SIZES, min_size=1, max_size=4), st.integers(1, 4), st.tuples(st.integers(0, 3), st.integers(0, 3)), st.data())
def test_a_host_takes_servers_while_a_way_exists(
    sizes: list[tuple[int, int]], nodes: int, part: tuple[int, int], data: st.DataObject
) -> None:
    made = fleet.table([host("other", (1, 1), (1, 1), (1, 1), (1, 1)), host("h", *sizes)])
    asked = fleet.spec(flavor(max(part[0] * nodes, 1), part[1] * nodes, nodes))
    request = fleet.request(asked, made, vcpus=part[0] * nodes)
    free: Free = tuple(sorted(sizes))
    row = made.rows_of["h"][0]
    for more in range(data.draw(st.integers(0, 6), "servers") + 1):
        passed = FILTER.passes(Hosts(made, request, np.array([row]), more), request)
        assert passed is not None
        assert bool(passed[0]) == (fit(free, part, nodes, more + 1) if any(part) else nodes <= len(sizes))
    limit = Hosts(made, request, np.array([row])).most_on_nodes(request.node_part)
    assert limit is not None
    taken = 0
    with made.take_tentatively():  # the choice of nodes does not spoil it
        while taken < 12 and (chosen := made.nodes_for(row, request.node_part)) is not None:
            assert len(set(chosen)) == nodes
            engine.take_row(made, request, row)
            taken += 1
    assert taken == 12 or not any(part) or not fit(free, part, nodes, taken + 1)
    assert not any(part) or fit(free, part, nodes, taken)
    if nodes in (1, 4):  # of at most four
        assert np.floor(np.clip(limit[0], 0, 12)) == (taken if any(part) or nodes > len(sizes) else 12)
    else:
        assert limit[0] >= taken


@given(st.integers(0, 10**6))
def test_free_node_room_follows_claims_and_plans(seed: int) -> None:
    """Of random claims, tied ones and others, plans and their ends: as added up here, and of one row as of all."""
    chance = random.Random(seed)
    counts = [chance.randint(0, 4) for _ in range(4)]
    nodes = [host(f"h{n}", *[(chance.randint(1, 20), chance.randint(1, 20)) for _ in range(c)]) for n, c in enumerate(counts)]
    made = fleet.table(nodes)
    rows = {node.host: fleet.inventory(key, node, fleet.CELLS[(key - 1) % 2]) for key, node in enumerate(nodes, 1)}
    for generation in range(2, 8):
        name = chance.choice(list(rows))
        tied = {
            kind: chance.randint(0, 5)
            for n in range(len(nodes[int(name[1])].numa_nodes))
            for kind in numa.class_names(n)
            if chance.random() < 0.7
        }
        used = [sum(amount for kind, amount in tied.items() if kind.endswith(end)) + chance.choice((0, 3)) for end in ("CPU", "MB")]
        rows[name] = msgspec.structs.replace(
            rows[name], generation=generation, used_vcpus=used[0], used_memory_mb=used[1], used_resources=tied
        )
        if chance.random() < 0.5:
            made.set_inventory(rows[name], now=1.0)
        else:
            made.set_inventories(list(rows.values()), now=1.0)
        with made.take_tentatively():
            request = fleet.request(fleet.spec(flavor(2, 2, chance.choice((1, 2)))), made)
            for row in range(made.size):
                if chance.random() < 0.5 and made.nodes_for(row, request.node_part) is not None:
                    engine.take_row(made, request, row)
        for known in rows.values():
            check_rooms(made, made.rows_of[known.host][0], nodes[int(known.host[1])].total_capacity.resources, known)


def check_rooms(made: HostTable, row: int, cap: dict[str, int], known: Any) -> None:
    there = {numa.node_of_class(name) for name in cap}
    found = made.node_rooms(np.array([row]))
    nodes = [] if found is None else found.rooms_by_node()
    for what, used in enumerate((known.used_vcpus, known.used_memory_mb)):
        assert found is None or found.least_room[what][0] == min(node[what][0] for node in nodes)
        for number, (node, alone) in enumerate(zip(nodes, made.free_on_nodes([row]), strict=True)):
            room = node[what][0]
            assert alone[what] == [room]
            if not cap:
                assert room == np.inf
            elif number not in there:
                assert room == -np.inf
            else:
                names = [numa.class_names(each)[what] for each in range(len(made.classes.numa))]
                others = used - sum(known.used_resources.get(name, 0) for name in names)
                own = names[number]
                assert room == cap.get(own, 0) - known.used_resources.get(own, 0) - max(others, 0)


# -- plans ---------------------------------------------------------------------------------------------------------------------


class TestPlans:
    def test_a_server_gets_the_tightest_sufficient_node(self) -> None:
        made = fleet.table([host("h1", (8, 64), (6, 64), (12, 64))])
        job = job_of(flavor(6), 3)
        plan(made, job)
        assert [placement.selections[0].numa_nodes for placement in job.placements] == [(1,), (0,), (2,)]
        assert made.classes["NUMA1_VCPU"].claimed[0] == 0  # all is given back

    def test_jobs_of_one_transaction_share_nodes(self) -> None:
        made = fleet.table([host("h1", (8, 64), (8, 64))])
        jobs = [job_of(flavor(4)), job_of(flavor(8, 2, nodes=2)), job_of(flavor(4)), job_of(flavor(1))]
        plan(made, *jobs)
        nodes = [[placement.selections[0].numa_nodes for placement in job.placements] for job in jobs]
        assert nodes == [[(0,)], [(0, 1)], [(1,)], []]
        assert jobs[3].is_refused

    def test_a_host_without_nodes_gets_none(self) -> None:
        made = fleet.table([host("h1", (2, 64)), host("h2")])
        job = job_of(flavor(8, 2, nodes=2))
        plan(made, job)
        [placement] = job.placements
        assert (placement.selections[0].host, placement.selections[0].numa_nodes) == ("h2", ())

    def test_alternates_have_nodes_of_their_own(self) -> None:
        nodes = [host("h1", (8, 64), (4, 64)), host("x"), host("h2", (4, 64), (8, 64))]
        made = fleet.table(nodes)
        job = job_of(flavor(8), force_hosts=(), ignore_hosts=("x",))
        plan(made, job)
        [placement] = job.placements
        assert {each.host: each.numa_nodes for each in placement.selections} == {"h1": (0,), "h2": (1,)}

    def test_affinity_members_find_nodes_of_one_host(self) -> None:
        made = fleet.table([host("h1", (9, 64), (9, 64)), host("h2", (6, 64), (6, 64))])
        job = job_of(flavor(6), 2, group=fleet.group(GroupPolicy.AFFINITY))
        plan(made, job)
        assert [(p.selections[0].host, p.selections[0].numa_nodes) for p in job.placements] == [("h1", (0,)), ("h1", (1,))]
        job = job_of(flavor(6), 3, group=fleet.group(GroupPolicy.AFFINITY))
        plan(made, job)
        assert job.is_refused

    def test_a_dry_run_names_the_nodes(self) -> None:
        made = fleet.table([host("h1", (8, 64), (4, 64))])
        planner = plan(made, job_of(flavor(4), 2), kind=DryRunPlanner)
        assert isinstance(planner, DryRunPlanner)
        [answer] = planner.answers
        assert answer is not None
        assert [server.numa_nodes for server in answer.servers] == [(1,), (0,)]

    def test_a_smaller_amount_would_fit_a_node(self) -> None:
        made = fleet.table([host("h1", (8, 64), (6, 64))])
        for size, less in ((flavor(10), 2), (flavor(14, nodes=2), 2)):
            job = job_of(size)
            plan(made, job)
            assert job.remedies.relaxations is not None
            found = {each.asked: each for each in job.remedies.relaxations}
            assert found[Asked.VCPUS].less == less
        job = job_of(flavor(9, 2, nodes=1))
        plan(made, job)
        assert job.remedies.relaxations is not None
        assert Asked.EXTRA_SPEC not in {each.asked for each in job.remedies.relaxations}

    def test_the_first_affinity_member_picks_nodes_with_room(self) -> None:
        """h1 has more free in all, but each of its nodes takes one."""
        made = fleet.table([host("h1", (7, 640), (7, 640)), host("h2", (12, 640))])
        driver = fleet.driver(enabled_weighers=("CPUWeigher", "AffinityRoomWeigher"), cpu_weight_multiplier=0.1)
        request = fleet.request(fleet.spec(flavor(4, 1), group=fleet.group(GroupPolicy.AFFINITY)), made)
        with made.take_tentatively():
            [row] = driver.place_instances(made, request, survey(made, driver, request), 1)
        assert made.hosts[row] == "h2"


class TestCapacity:
    @pytest.mark.parametrize(("vcpus", "nodes", "servers"), [(3, 1, 3 + 5), (4, 1, 2 + 4), (5, 1, 2 + 3), (8, 2, 1 + 2)])
    def test_the_number_of_one_flavor_is_exact(self, vcpus: int, nodes: int, servers: int) -> None:
        made = fleet.table([host("h1", (7, 640), (5, 640)), host("h2")])
        driver = fleet.driver()
        request = fleet.request(fleet.spec(flavor(vcpus, 2, nodes)), made)
        found = capacity.host_room(made, driver, request)
        assert int(found.counts.sum()) == servers


def test_kept_surveys_say_the_same() -> None:
    chance = random.Random(5)
    nodes = [host(f"h{n}", *[(chance.randint(1, 20), chance.randint(100, 900)) for _ in range(n % 3)]) for n in range(60)]
    made, plain, kept = fleet.table(nodes), fleet.driver(), fleet.driver()
    plain.shapes, kept.shapes = Shapes(10**9), Shapes(1)
    sizes = [flavor(4, 40), flavor(6, 60, 2), flavor(12, 300), flavor(3, 3, 2)]
    for generation in range(2, 40):
        n = chance.randrange(len(nodes))
        room = nodes[n].total_capacity
        tied = {name: chance.randint(0, amount) for name, amount in room.resources.items()}
        used = [sum(amount for name, amount in tied.items() if name.endswith(end)) for end in ("CPU", "MB")]
        row = fleet.inventory(
            n + 1, nodes[n], fleet.CELLS[n % 2], generation, used_vcpus=used[0], used_memory_mb=used[1], used_resources=tied
        )
        made.set_inventory(row, now=float(generation))
        for size in sizes:
            asked = fleet.spec(size)
            found = [set(survey(made, one, fleet.request(asked, made)).passing_rows.tolist()) for one in (plain, kept)]
            assert found[0] == found[1]
