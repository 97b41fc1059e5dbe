"""What holds of every plan, whatever the fleet and the request."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from objects.group import GroupPolicy, ServerGroup
from objects.inventory import Slot
from scheduler.engine import engine
from scheduler.engine.alternates import Alternates
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.surveying import survey
from scheduler.framework.batch_request import Request
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.examples import examples

HOSTS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 16), st.integers(0, 20), st.integers(0, 6)), min_size=1, max_size=12)
"""vCPUs, GiB of memory, GiB of disk, and how much of each is claimed: sometimes more than there is."""
SIZES = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 5))
WEIGHTS = st.sampled_from([-1.0, 0.0, 1.0, 2.5])


@st.composite
def fleets(draw: st.DrawFn) -> HostTable:
    nodes, used = [], []
    for n, (vcpus, memory, disk, claimed) in enumerate(draw(HOSTS)):
        nodes.append(fleet.node(f"h{n}", vcpus=vcpus, memory_mb=memory * 1024, disk_gb=disk))
        used.append(claimed)
    made = fleet.table(nodes)
    for n, (node, claimed) in enumerate(zip(nodes, used, strict=True)):
        amounts = {"used_vcpus": claimed, "used_memory_mb": claimed * 1024, "used_disk_gb": claimed, "instances": claimed}
        made.set_inventory(fleet.inventory(n + 1, node, fleet.CELLS[n % 2], 2, **amounts), now=0.0)
    return made


@st.composite
def drivers(draw: st.DrawFn) -> SchedulerDriver:
    return fleet.driver(
        ram_weight_multiplier=draw(WEIGHTS),
        cpu_weight_multiplier=draw(WEIGHTS),
        disk_weight_multiplier=draw(WEIGHTS),
        num_instances_weight_multiplier=draw(WEIGHTS),
        host_subset_size=draw(st.sampled_from([1, 1, 1, 3])),
        driver=draw(st.sampled_from(["filter", "filter", "chance"])),
    )


def asked(
    table: HostTable, size: tuple[int, int, int], group: ServerGroup | None = None, slots: list[Slot] | None = None
) -> Request:
    vcpus, memory, disk = size
    return fleet.request(fleet.spec(fleet.flavor(vcpus, memory * 1024, disk), group=group), table, slots or [])


@given(fleets(), drivers(), SIZES, st.integers(1, 30))
@examples(200)
def test_a_plan_never_over_commits_and_places_maximally(
    table: HostTable, driver: SchedulerDriver, size: tuple[int, int, int], count: int
) -> None:
    request = asked(table, size)
    free = (table.free_vcpus.copy(), table.free_memory_mb.copy(), table.free_disk_gb.copy())
    amounts = (request.vcpus, request.memory_mb, request.disk_gb)
    with table.take_tentatively():
        rows = engine.choose_rows(table, driver, request, survey(table, driver, request), count)
    for row, taken in Counter(rows).items():
        for column, amount in zip(free, amounts, strict=True):
            assert amount == 0 or amount * taken <= column[row]
    limits = [column // amount for column, amount in zip(free, amounts, strict=True) if amount]
    room = int(np.maximum(np.minimum.reduce(limits), 0)[: table.size].sum()) if limits else count
    assert len(rows) == min(count, room)


@given(fleets(), SIZES, st.integers(1, 20), WEIGHTS, WEIGHTS)
@examples(200)
def test_planning_a_batch_equals_planning_single_instances(
    table: HostTable, size: tuple[int, int, int], count: int, ram: float, instances: float
) -> None:
    driver = fleet.driver(ram_weight_multiplier=ram, num_instances_weight_multiplier=instances)
    request = asked(table, size)
    found = survey(table, driver, request)
    with table.take_tentatively():
        at_once = engine.choose_rows(table, driver, request, found, count)
    one_by_one: list[int] = []
    with table.take_tentatively():
        for _ in range(count):
            scores = engine.score_rows(table, driver, request, found.parts, found.passing_rows)
            if not scores.size or scores.max() == -np.inf:
                break
            one_by_one.append(int(found.passing_rows[scores.argmax()]))
            engine.take_row(table, request, one_by_one[-1])
    assert at_once == one_by_one


@given(
    fleets(),
    SIZES,
    st.integers(1, 15),
    st.integers(1, 3),
    st.sampled_from([GroupPolicy.AFFINITY, GroupPolicy.ANTI_AFFINITY]),
    st.data(),
)
@examples(200)
def test_groups_hold_within_batches_and_with_earlier_members(
    table: HostTable, size: tuple[int, int, int], count: int, most: int, policy: GroupPolicy, data: st.DataObject
) -> None:
    group = fleet.group(policy, most)
    hosts = [f"h{n}" for n in range(table.size)]
    places = data.draw(st.lists(st.tuples(st.sampled_from(hosts), st.booleans()), max_size=4))
    slots = [Slot(group_uuid=group.uuid, instance_uuid=f"old{n}", host=h, held=held) for n, (h, held) in enumerate(places)]
    if policy is GroupPolicy.AFFINITY:
        slots = [slot for slot in slots if not slot.held][:1]
    request = asked(table, size, group, slots)
    driver = fleet.driver()
    with table.take_tentatively():
        rows = engine.choose_rows(table, driver, request, survey(table, driver, request), count)
    before = Counter(slot.host for slot in slots)
    placed = Counter(table.hosts[row] for row in rows)
    if policy is GroupPolicy.ANTI_AFFINITY:
        assert all(before[host] + n <= most for host, n in placed.items())
    else:
        assert len(placed.keys() | before.keys()) <= 1


@given(fleets(), SIZES, st.integers(1, 10), st.integers(1, 4), st.sampled_from([None, GroupPolicy.ANTI_AFFINITY]))
@examples(150)
def test_alternates_are_other_roomy_hosts_of_the_cell(
    table: HostTable, size: tuple[int, int, int], count: int, attempts: int, policy: GroupPolicy | None
) -> None:
    vcpus, memory, disk = size
    group = fleet.group(policy) if policy else None
    spec = fleet.spec(fleet.flavor(vcpus, memory * 1024, disk), max_attempts=attempts, group=group)
    request = fleet.request(spec, table)
    driver = fleet.driver()
    with table.take_tentatively():
        found = survey(table, driver, request)
        rows = engine.choose_rows(table, driver, request, found, count)
        chosen = [(f"i{n}", row) for n, row in enumerate(rows)]
        given_out = Alternates(table, driver, request, found).choose_rows(chosen)
        assert given_out.keys() == {uuid for uuid, _ in chosen}
        for uuid, row in chosen:
            others = given_out[uuid]
            assert len(others) <= attempts - 1
            assert len({row, *others}) == len(others) + 1
            assert all(table.cell[other] == table.cell[row] for other in others)
            if policy is None:
                assert engine.fitting_rows(driver, table, request, np.array(others, dtype=np.int64)).all()
        if policy is GroupPolicy.ANTI_AFFINITY:
            everything = [table.hosts[r] for r in rows] + [table.hosts[o] for others in given_out.values() for o in others]
            assert len(everything) == len(set(everything))
