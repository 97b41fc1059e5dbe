"""Each weigher by itself, and how they are added up."""

from __future__ import annotations

import numpy as np
import pytest

from objects.group import GroupPolicy
from objects.inventory import Slot
from scheduler.engine import engine
from scheduler.engine.surveying import survey
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from scheduler.framework.weigher import Weigher
from scheduler.table.arrays import Floats
from scheduler.weighers.affinity import (
    AffinityRoomWeigher,
    ServerGroupSoftAffinityWeigher,
    ServerGroupSoftAntiAffinityWeigher,
)
from scheduler.weighers.capacity import CPUWeigher, DiskWeigher, RAMWeigher
from scheduler.weighers.load import BuildFailureWeigher, NumInstancesWeigher
from tests.support import fleet


@pytest.mark.parametrize(
    ("kind", "expected"), [(RAMWeigher, [1000.0, 3000.0]), (CPUWeigher, [2.0, 6.0]), (DiskWeigher, [10.0, 30.0])]
)
def test_free_resources(kind: type[Weigher], expected: list[float]) -> None:
    table = fleet.table(
        [fleet.node("h1", vcpus=2, memory_mb=1000, disk_gb=10), fleet.node("h2", vcpus=6, memory_mb=3000, disk_gb=30)]
    )
    request = fleet.request(fleet.spec(), table)
    raw = kind(SchedulerSettings()).weigh(Hosts(table, request), request)
    assert raw is not None
    assert raw.tolist() == expected


def test_the_first_affinity_member_seeks_the_most_room() -> None:
    table = fleet.table([fleet.node("h1", vcpus=8), fleet.node("h2", vcpus=32, memory_mb=8192), fleet.node("h3", vcpus=16)])
    weigher = AffinityRoomWeigher(SchedulerSettings())
    together = fleet.spec(fleet.flavor(2, 4096), group=fleet.group(GroupPolicy.AFFINITY))
    request = fleet.request(together, table)
    raw = weigher.weigh(Hosts(table, request), request)
    assert raw is not None
    assert raw.tolist() == [4.0, 2.0, 8.0]
    nothing = fleet.request(fleet.spec(fleet.flavor(0, 0, 0), group=together.group), table)
    assert weigher.weigh(Hosts(table, nothing), nothing).tolist() == [0.0] * 3  # type: ignore[union-attr]  # it applies
    later = fleet.request(together, table, [Slot(group_uuid="g", instance_uuid="i", host="h1")])
    for other in (later, fleet.request(fleet.spec(group=fleet.group(GroupPolicy.ANTI_AFFINITY)), table)):
        assert weigher.weigh(Hosts(table, other), other) is None


def test_instances_are_counted() -> None:
    node = fleet.node("h1")
    table = fleet.table([node, fleet.node("h2")])
    table.set_inventory(fleet.inventory(1, node, fleet.CELLS[0], 2, instances=4), now=0.0)
    request = fleet.request(fleet.spec(), table)
    assert NumInstancesWeigher(SchedulerSettings()).weigh(Hosts(table, request), request).tolist() == [4.0, 0.0]


def test_hosts_with_failed_builds_come_last() -> None:
    nodes = [fleet.node("h1", failed_builds=2.0), fleet.node("h2", vcpus=8), fleet.node("h3", failed_builds=1.0, vcpus=1)]
    table = fleet.table(nodes)
    request = fleet.request(fleet.spec(), table)
    weigher = BuildFailureWeigher(SchedulerSettings())
    raw = weigher.weigh(Hosts(table, request), request)
    assert raw is not None
    assert (raw.tolist(), weigher.weight_multiplier) == ([2.0, 0.0, 1.0], -1000000.0)
    driver = fleet.driver(enabled_weighers=("BuildFailureWeigher", "CPUWeigher"))
    found = survey(table, driver, request)
    assert found.passing_scores.tolist() == pytest.approx([-1000000.0 + 1.0, 0.5, -500000.0 + 0.0625])
    healthy = fleet.table([fleet.node("h1"), fleet.node("h2")])
    assert weigher.weigh(Hosts(healthy, request), request) is None


@pytest.mark.parametrize(
    ("kind", "policy", "expected"),
    [
        (ServerGroupSoftAffinityWeigher, GroupPolicy.SOFT_AFFINITY, [2.0, 0.0]),
        (ServerGroupSoftAntiAffinityWeigher, GroupPolicy.SOFT_ANTI_AFFINITY, [-2.0, 0.0]),
        (ServerGroupSoftAffinityWeigher, GroupPolicy.AFFINITY, None),
        (ServerGroupSoftAntiAffinityWeigher, GroupPolicy.SOFT_AFFINITY, None),
    ],
)
def test_soft_groups(kind: type[Weigher], policy: GroupPolicy, expected: list[float] | None) -> None:
    table = fleet.table([fleet.node("h1"), fleet.node("h2")])
    slots = [Slot(group_uuid="g", instance_uuid=f"i{n}", host="h1") for n in range(2)]
    request = fleet.request(fleet.spec(group=fleet.group(policy)), table, slots)
    raw = kind(SchedulerSettings()).weigh(Hosts(table, request), request)
    assert (None if raw is None else raw.tolist()) == expected


def test_weights_are_scaled_to_remaining_hosts_and_multiplied() -> None:
    """As Nova: memory spans from 0 to the most that is free, the count from the least to the most."""
    table = fleet.table([fleet.node("h1", memory_mb=16384), fleet.node("h2", memory_mb=8192)])
    table.set_inventory(fleet.inventory(1, fleet.node("h1", memory_mb=16384), fleet.CELLS[0], 2, instances=3), now=0.0)
    table.set_inventory(fleet.inventory(2, fleet.node("h2", memory_mb=8192), fleet.CELLS[1], 2, instances=1), now=0.0)
    driver = fleet.driver(
        enabled_weighers=("RAMWeigher", "NumInstancesWeigher"),
        ram_weight_multiplier=2.0,
        num_instances_weight_multiplier=-1.0,
        shuffle_best_same_weighed_hosts=False,
    )
    request = fleet.request(fleet.spec(), table)
    found = survey(table, driver, request)
    assert found.passing_scores.tolist() == [2.0 * 1.0 - 1.0 * 1.0, 2.0 * 0.5 - 0.0]
    assert fleet.weights(found, found.passing_rows.tolist()) == {"RAMWeigher": [2.0, 1.0], "NumInstancesWeigher": [-1.0, 0.0]}


def test_a_weight_below_the_range_counts_as_minimum() -> None:
    nodes = [fleet.node("h1", disk_gb=1000), fleet.node("h2", disk_gb=500), fleet.node("h3"), fleet.node("h4", disk_gb=750)]
    table = fleet.table(nodes)
    table.set_inventory(fleet.inventory(3, nodes[2], fleet.CELLS[0], 2, used_disk_gb=9000), now=0.0)  # a ratio was lowered, say
    request = fleet.request(fleet.spec(fleet.flavor(1, 1024, 0)), table)
    driver = fleet.driver(enabled_weighers=("DiskWeigher",))
    found = survey(table, driver, request)
    expected = [1.0, 0.5, 0.0, 0.75]
    assert found.passing_scores.tolist() == pytest.approx(expected, abs=2e-9)
    assert fleet.weights(found, [0, 1, 2, 3])["DiskWeigher"] == pytest.approx(expected, abs=2e-9)
    rows = np.arange(4)
    assert engine.score_rows(table, driver, request, found.parts, rows).tolist() == pytest.approx(expected, abs=2e-9)


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_a_site_weigher_without_numbers_has_no_say(strange: float, caplog: pytest.LogCaptureFixture) -> None:
    class Temperature(Weigher):
        weight_multiplier = 1.0

        def weigh(self, hosts: Hosts, request: Request) -> Floats:
            return np.array([strange, 20.0, 30.0])

    table = fleet.table([fleet.node("h1", vcpus=4), fleet.node("h2", vcpus=8), fleet.node("h3", vcpus=2)])
    request = fleet.request(fleet.spec(), table)
    driver = fleet.driver(enabled_weighers=("CPUWeigher",))
    Temperature.name = f"Temperature{strange}"  # the same is said once in a while only
    driver.weighers = (Temperature(driver.weighers[0].settings), *driver.weighers)
    found = survey(table, driver, request)
    assert found.passing_scores.tolist() == pytest.approx([0.5, 1.0, 0.25])
    assert [part.weigher.name for part in found.parts] == ["CPUWeigher"]
    assert f"weigher Temperature{strange}" in caplog.text


def test_hosts_that_all_weigh_the_same_add_nothing() -> None:
    table = fleet.table([fleet.node("h1"), fleet.node("h2")])
    driver = fleet.driver(
        enabled_weighers=("NumInstancesWeigher",), num_instances_weight_multiplier=5.0, shuffle_best_same_weighed_hosts=False
    )
    found = survey(table, driver, fleet.request(fleet.spec(), table))
    assert found.passing_scores.tolist() == [0.0, 0.0]


def test_a_multiplier_of_zero_switches_a_weigher_off() -> None:
    table = fleet.table([fleet.node("h1", memory_mb=2048), fleet.node("h2")])
    driver = fleet.driver(enabled_weighers=("RAMWeigher",), ram_weight_multiplier=0.0, shuffle_best_same_weighed_hosts=False)
    found = survey(table, driver, fleet.request(fleet.spec(), table))
    assert found.parts == ()
    assert np.array_equal(found.passing_scores, np.zeros(2))


def test_a_weigher_without_opinion_adds_nothing() -> None:
    """It had one of the whole fleet: builds have failed on a host that is not among the best."""
    table = fleet.table([fleet.node("h1"), fleet.node("h2", failed_builds=3)])
    request = fleet.request(fleet.spec(), table)
    found = survey(table, fleet.driver(enabled_weighers=("BuildFailureWeigher",)), request)
    best = found.passing_rows[:1]
    assert fleet.weights(found, found.passing_rows.tolist())["BuildFailureWeigher"][1] < 0.0
    assert fleet.weights(found, best.tolist()) == {"BuildFailureWeigher": [0.0]}
