"""Weighers of builds, leftovers and cells against a plain reference that looks at one host at a time."""

from __future__ import annotations

import time
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects import numa
from objects.cell import CellState
from objects.group import GroupPolicy
from objects.inventory import Slot
from scheduler.engine import engine
from scheduler.engine.surveying import survey
from scheduler.framework.batch_request import UNPACKED_POLICIES, Request
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from scheduler.weighers import leftover
from scheduler.weighers.balance import BalanceWeigher
from scheduler.weighers.cells import CellCapacityWeigher, CellSpreadWeigher
from scheduler.weighers.leftover import (
    LEAST_USABLE,
    MIX_KNOWN_FROM,
    OVERCOMMITTED,
    SIMILAR,
    TIGHTNESS,
    USED_AGAIN_PART,
    LeftoverWeigher,
    usable_part,
)
from scheduler.weighers.load import IoOpsWeigher
from tests.support import fleet
from tests.support.examples import examples

HOSTS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8), st.integers(0, 5)), min_size=1, max_size=10)
"""vCPUs, GiB of memory, GiB of disk, and how much of each is claimed."""
SIZES = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


def fleet_of(hosts: list[tuple[int, int, int, int]], guests: int = 0) -> HostTable:
    nodes = [
        fleet.node(f"h{n}", vcpus=v, memory_mb=m * 1024, disk_gb=d, running_vms=guests) for n, (v, m, d, _) in enumerate(hosts)
    ]
    table = fleet.table(nodes)
    for n, (node, (_, _, _, claimed)) in enumerate(zip(nodes, hosts, strict=True)):
        used = {"used_vcpus": claimed, "used_memory_mb": claimed * 1024, "used_disk_gb": claimed, "instances": claimed}
        table.set_inventory(fleet.inventory(n + 1, node, fleet.CELLS[n % 2], 2, **used), now=0.0)
    return table


@given(HOSTS, st.integers(0, 3), st.integers(0, 3))
@examples(60)
def test_builds_under_way(hosts: list[tuple[int, int, int, int]], guests: int, more: int) -> None:
    table = fleet_of(hosts, guests)
    request = fleet.request(fleet.spec(), table)
    weigher = IoOpsWeigher(SchedulerSettings())
    assert weigher.weigh(Hosts(table, request, None, more), request).tolist() == [max(0, h[3] + more - guests) for h in hosts]
    assert weigher.weight_multiplier == -1.0


@given(HOSTS, SIZES, st.integers(0, 2))
@examples(150)
def test_the_remaining_room_has_the_shape_of_hosts(
    hosts: list[tuple[int, int, int, int]], size: tuple[int, int, int], more: int
) -> None:
    def reference(host: tuple[int, int, int, int]) -> float:
        *capacities, claimed = host
        pairs = zip(capacities, size, strict=True)
        shares = [min(1.0, max(0.0, (has - claimed - amount * (more + 1)) / has)) for has, amount in pairs if has]
        return min(shares) - max(shares) if shares else 0.0

    table = fleet_of(hosts)
    request = fleet.request(fleet.spec(fleet.flavor(size[0], size[1] * 1024, size[2])), table)
    raw = BalanceWeigher(SchedulerSettings()).weigh(Hosts(table, request, None, more), request)
    assert raw.tolist() == pytest.approx([reference(host) for host in hosts])


@given(HOSTS, SIZES, st.integers(0, 2), st.sampled_from([0.5, 1.0, 1.2]))
@examples(100)
def test_the_shape_of_the_room_that_is_left(
    hosts: list[tuple[int, int, int, int]], size: tuple[int, int, int], more: int, shape: float
) -> None:
    def reference(host: tuple[int, int, int, int]) -> float | None:
        *capacities, claimed = host
        if not all(capacities[:2]):
            return None  # such a host takes no server
        vcpus, memory = ((has - claimed - (1 + more) * takes) / has for has, takes in zip(capacities[:2], size[:2], strict=True))
        return -abs(vcpus - shape * memory) - TIGHTNESS * (vcpus + memory)

    table = fleet_of(hosts)
    request = fleet.request(fleet.spec(fleet.flavor(size[0], size[1] * 1024, size[2])), table)
    weigher = LeftoverWeigher(SchedulerSettings(leftover_shape=shape, leftover_from=0.0))
    request.remember_result(("terms", weigher.name), lambda: (1.0, 1.0))
    raw = weigher.weigh(Hosts(table, request, None, more), request)
    assert raw is not None
    assert np.isfinite(raw).all()
    for found, expected in zip(raw.tolist(), map(reference, hosts), strict=True):
        assert expected is None or found == pytest.approx(expected)


NODES = st.lists(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=3), min_size=1, max_size=8)
"""Of each host the vCPUs of its NUMA nodes, with as many GiB, and how many of both are claimed."""


@given(NODES, st.integers(1, 3), st.integers(1, 2), st.integers(0, 2))
@examples(100)
def test_a_host_counts_like_its_fullest_node(hosts: list[list[tuple[int, int]]], vcpus: int, nodes: int, more: int) -> None:
    def reference(host: list[tuple[int, int]]) -> float:
        cap = sum(has for has, _ in host) or 2
        free = min(has - min(claimed, has) for has, claimed in host) * len(host) if host else 2
        share = (free - vcpus * (1 + more)) / cap
        return max(share, 0.0) if any(hosts) else share

    made = [
        fleet.node(f"h{n}", vcpus=sum(has for has, _ in host) or 2, memory_mb=(sum(has for has, _ in host) or 2) * 1024)
        for n, host in enumerate(hosts)
    ]
    table = fleet.table(made)
    for n, (node, host) in enumerate(zip(made, hosts, strict=True)):
        used = [min(claimed, has) for has, claimed in host]
        caps, tied = (
            {
                name: amount
                for number, each in enumerate(amounts)
                for name, amount in zip(numa.class_names(number), (each, each * 1024), strict=True)
            }
            for amounts in ([has for has, _ in host], used)
        )
        row = fleet.inventory(n + 1, node, fleet.CELLS[n % 2], 2, used_vcpus=sum(used), used_memory_mb=sum(used) * 1024)
        table.set_inventory(msgspec.structs.replace(row, cap_resources=caps, used_resources=tied), now=0.0)
    size = msgspec.structs.replace(fleet.flavor(vcpus, vcpus * 1024, 0), extra_specs={"hw:numa_nodes": str(nodes)})
    request = fleet.request(fleet.spec(size), table)
    weigher = LeftoverWeigher(SchedulerSettings(leftover_shape=1.0, leftover_from=0.0))
    request.remember_result(("terms", weigher.name), lambda: (1.0, 1.0))
    raw = weigher.weigh(Hosts(table, request, None, more), request)
    assert raw is not None
    for found, host in zip(raw.tolist(), hosts, strict=True):
        assert found == pytest.approx(-2.0 * TIGHTNESS * reference(host))


def applies(weigher: LeftoverWeigher, table: HostTable, policy: GroupPolicy | None = None) -> bool:
    asked = fleet.spec(fleet.flavor(1, 1024, 0), group=fleet.group(policy) if policy else None)
    request = fleet.request(asked, table)
    return weigher.weigh(Hosts(table, request), request) is not None


@pytest.mark.parametrize(("claimed", "chosen"), [((2, 4), 0), ((4, 6), 1)])
def test_defaults_spread_with_room_and_pack_without(claimed: tuple[int, int], chosen: int) -> None:
    table = fleet_of([(8, 8, 8, each) for each in claimed])
    request, driver = fleet.request(fleet.spec(fleet.flavor(1, 1024, 1)), table), fleet.driver()
    with table.take_tentatively():
        assert engine.choose_rows(table, driver, request, survey(table, driver, request), 1) == [chosen]


def test_the_shape_counts_from_a_fleet_share_on() -> None:
    table = fleet_of([(8, 8, 8, 0), (8, 8, 8, 2)])
    table.take_room(0, 4, 1024, 0)  # 6 of 16 vCPUs are used
    weighers = [LeftoverWeigher(SchedulerSettings(leftover_from=share)) for share in (0.0, 0.375, 0.38)]
    assert [applies(one, table) for one in weighers] == [True, True, False]
    request = fleet.request(fleet.spec(), table)
    assert weighers[2].weigh(Hosts(table, request), request) is None
    table.take_room(1, 2, 1024, 0)
    assert weighers[2].weigh(Hosts(table, request), request) is None, "one answer for each request"
    assert applies(weighers[2], table)


@pytest.mark.parametrize("policy", GroupPolicy)
def test_groups_that_packing_would_thwart_are_spread(policy: GroupPolicy) -> None:
    table = fleet_of([(8, 8, 8, 6)])
    assert applies(LeftoverWeigher(SchedulerSettings(leftover_from=0.5)), table, policy) == (policy not in UNPACKED_POLICIES)
    assert applies(LeftoverWeigher(SchedulerSettings(leftover_from=0.0)), table, policy)


def test_hosts_out_of_service_offer_no_room() -> None:
    table = fleet_of([(8, 8, 8, 6), (8, 8, 8, 0), (8, 8, 8, 0)])
    weigher = LeftoverWeigher(SchedulerSettings(leftover_from=0.7))
    assert not applies(weigher, table)
    table.set_service(fleet.CELLS[1], "h1", time.monotonic(), disabled=True, forced_down=False)
    table.set_service(fleet.CELLS[0], "h2", time.monotonic(), disabled=False, forced_down=True)
    assert applies(weigher, table)
    table.set_cells(fleet.cells(CellState.DISABLED, CellState.ENABLED))
    assert not applies(weigher, table), "a fleet of nothing is not full"


def test_large_fleet_fullness_is_not_read_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    table = fleet_of([(8, 8, 8, 0)] * (2 * USED_AGAIN_PART))
    weigher, looks = LeftoverWeigher(SchedulerSettings(leftover_from=0.5)), list[int]()

    def look(seen: HostTable, _: Request) -> tuple[float, float]:
        looks.append(seen.change_count)
        return 0.5, 0.5

    monkeypatch.setattr(leftover, "used_shares", look)
    for _ in range(9):
        weigher.weigh(Hosts(table, request := fleet.request(fleet.spec(), table)), request)
        table.take_room(0, 1, 1024, 0)
    assert len(looks) == 3


@pytest.mark.parametrize("at_once", [False, True])
def test_the_shape_follows_current_capacities(*, at_once: bool) -> None:
    """The table keeps what it divides by. Hosts are resized and added after it was first asked for."""
    table = fleet_of([(8, 8, 8, 2), (8, 8, 8, 3)])
    weigher = LeftoverWeigher(SchedulerSettings(leftover_from=0.0))
    assert applies(weigher, table)
    sizes = [(16, 4), (8, 8), *[(4, 16)] * 100]  # a quarter is used
    nodes = [fleet.node(f"h{n}", vcpus=vcpus, memory_mb=gib * 1024) for n, (vcpus, gib) in enumerate(sizes)]
    rows = [
        fleet.inventory(n + 1, nodes[n], fleet.CELLS[n % 2], 3, used_vcpus=vcpus // 4, used_memory_mb=gib * 256)
        for n, (vcpus, gib) in enumerate(sizes)
    ]
    if at_once:
        table.set_inventories(rows, 0.0)
    else:
        for row in rows:
            table.set_inventory(row, 0.0)
            assert applies(weigher, table)
    request = fleet.request(fleet.spec(fleet.flavor(1, 1, 0)), table)
    raw = weigher.weigh(Hosts(table, request), request)
    shares = [(0.75 - 1 / vcpus, 0.75 - 1 / (gib * 1024)) for vcpus, gib in sizes]
    assert raw is not None
    assert raw.tolist() == pytest.approx([-abs(vcpus - 1.15 * memory) - TIGHTNESS * (vcpus + memory) for vcpus, memory in shares])


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_usable_part_of_a_resource_is_bounded(used: float, other: float) -> None:
    part = usable_part(used, other)
    assert 0.0 < part <= 1.0
    assert part == 1.0 or usable_part(other, used) == 1.0, "of one resource at most, only a part is usable"
    if other < MIX_KNOWN_FROM or used >= SIMILAR * other:
        assert part == 1.0
    elif used > OVERCOMMITTED * other:
        assert OVERCOMMITTED * 0.95 <= part <= 1.0
    elif used >= LEAST_USABLE * other:
        assert part == pytest.approx(used / other, rel=0.05)


def test_hosts_with_overcommitted_vcpus_are_filled_up_too() -> None:
    """Of hosts with servers of one mix, the fuller one, although all keep vCPUs that nobody needs."""
    table = fleet_of([(64, 8, 8, 4), (64, 8, 8, 2), (64, 8, 8, 6)])
    request = fleet.request(fleet.spec(fleet.flavor(1, 1024, 0)), table)
    weigher = LeftoverWeigher(SchedulerSettings(leftover_from=0.5))
    raw = weigher.weigh(Hosts(table, request), request)
    assert raw is not None
    assert np.argsort(-raw).tolist() == [2, 0, 1]
    terms = weigher.cached_terms(table, request)
    assert terms == (usable_part(12 / 192, 12 / 24), 1.0)
    assert terms[0] == 1 / 8


def test_servers_that_need_both_go_together() -> None:
    """A host that is full of vCPUs keeps memory that nobody can use, so the second server goes where it evens that out."""
    table = fleet_of([(8, 8, 8, 0), (8, 8, 8, 0)])
    weigher = LeftoverWeigher(SchedulerSettings(leftover_shape=1.0, leftover_from=0.0))
    much_memory, many_vcpus = (fleet.request(fleet.spec(fleet.flavor(*size, 0)), table) for size in ((1, 4096), (4, 1024)))
    table.take_room(0, much_memory.vcpus, much_memory.memory_mb, 0)
    for request, chosen in ((many_vcpus, 0), (much_memory, 1)):
        request.remember_result(("terms", weigher.name), lambda: (1.0, 1.0))  # other servers ran before
        raw = weigher.weigh(Hosts(table, request), request)
        assert raw is not None
        assert int(raw.argmax()) == chosen


@given(HOSTS)
@examples(100)
def test_the_share_of_its_cell_that_is_free(hosts: list[tuple[int, int, int, int]]) -> None:
    def share(cell: int) -> float:
        mine = hosts[cell::2]
        vcpus = sum(max(0, h[0] - h[3]) for h in mine) / max(sum(h[0] for h in mine), 1e-9)
        memory = sum(max(0, h[1] - h[3]) for h in mine) / max(sum(h[1] for h in mine), 1e-9)
        return min(vcpus, memory)

    table = fleet_of(hosts)
    request = fleet.request(fleet.spec(), table)
    raw = CellCapacityWeigher(SchedulerSettings()).weigh(Hosts(table, request), request)
    assert raw.tolist() == pytest.approx([share(n % 2) for n in range(len(hosts))])


@given(HOSTS, SIZES, st.integers(2, 20), st.sampled_from([-1.0, 0.5, 2.0]), st.sampled_from([0.0, 1.0]))
@examples(150)
def test_a_batch_spread_over_cells_equals_full_looks(
    hosts: list[tuple[int, int, int, int]], size: tuple[int, int, int], count: int, spread: float, memory: float
) -> None:
    table = fleet_of(hosts)
    driver = fleet.driver(
        enabled_weighers=("RAMWeigher", "CellSpreadWeigher"), cell_spread_weight_multiplier=spread, ram_weight_multiplier=memory
    )
    asked = fleet.spec(fleet.flavor(size[0], size[1] * 1024, size[2]), num_instances=count)
    request = fleet.request(asked, table)
    found = survey(table, driver, request)
    with table.take_tentatively():
        at_once = engine.choose_rows(table, driver, request, found, count)
    again, one_by_one = fleet.request(asked, table), []
    with table.take_tentatively():
        for _ in range(count):
            scores = engine.score_rows(table, driver, again, found.parts, found.passing_rows)
            if not scores.size or scores.max() == -np.inf:
                break
            one_by_one.append(int(found.passing_rows[scores.argmax()]))
            engine.take_row(table, again, one_by_one[-1])
    assert at_once == one_by_one


def test_a_large_batch_is_spread_evenly_over_cells() -> None:
    nodes = [fleet.node(f"h{n}", memory_mb=65536 if n % 2 else 131072) for n in range(200)]  # one cell has the larger hosts
    table = fleet.table(nodes)
    asked = fleet.spec(num_instances=10)
    for spread, expected in ((1.0, [5, 5]), (0.0, [10])):
        driver = fleet.driver(enabled_weighers=("RAMWeigher", "CellSpreadWeigher"), cell_spread_weight_multiplier=spread)
        request = fleet.request(asked, table)
        with table.take_tentatively():
            rows = engine.choose_rows(table, driver, request, survey(table, driver, request), 10)
        assert list(Counter(table.cell[rows].tolist()).values()) == expected


def test_earlier_members_count_and_single_servers_avoid_nothing() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(3)])
    slots = [Slot(group_uuid="g", instance_uuid=f"i{n}", host="H0") for n in range(2)]
    weigher = CellSpreadWeigher(SchedulerSettings())
    request = fleet.request(fleet.spec(group=fleet.group(GroupPolicy.SOFT_ANTI_AFFINITY)), table, slots)
    raw = weigher.weigh(Hosts(table, request), request)
    assert raw is not None
    assert raw.tolist() == [-2.0, 0.0, -2.0]
    alone = fleet.request(fleet.spec(), table)
    assert weigher.weigh(Hosts(table, alone), alone) is None
