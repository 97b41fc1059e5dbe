"""Each filter by itself."""

from __future__ import annotations

import time
from typing import Any

import pytest

from objects.aggregate import Aggregate
from objects.cell import CellState
from objects.group import GroupPolicy
from objects.inventory import Slot
from objects.spec import RequestSpec
from scheduler.engine.always import ExcludedCells, ForceHosts, IgnoreHosts
from scheduler.filters.adapter import Adapter
from scheduler.filters.affinity import ServerGroupAffinityFilter, ServerGroupAntiAffinityFilter
from scheduler.filters.availability_zone import AvailabilityZoneFilter
from scheduler.filters.capacity import CoreFilter, DiskFilter, RamFilter
from scheduler.filters.compute import ComputeFilter
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts, HostState
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from tests.support import fleet

ONE, TWO = fleet.CELLS


def left(kind: type[Filter], table: HostTable, asked: RequestSpec, **changes: Any) -> list[str]:
    """The hosts that pass."""
    request = fleet.request(asked, table, **changes)
    mask = kind(SchedulerSettings()).passes(Hosts(table, request), request)
    return [host for row, host in enumerate(table.hosts) if mask is None or mask[row]]


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        (RamFilter, {"memory_mb": 2000}, ["big"]),
        (RamFilter, {"memory_mb": 1000}, ["small", "big"]),
        (RamFilter, {"memory_mb": 0}, ["small", "big", "full"]),
        (CoreFilter, {"vcpus": 3}, ["big"]),
        (CoreFilter, {"vcpus": 2}, ["small", "big"]),
        (DiskFilter, {"root_gb": 11}, ["big"]),
        (DiskFilter, {"root_gb": 10}, ["small", "big"]),
        (DiskFilter, {"root_gb": 0}, ["small", "big", "full"]),
    ],
)
def test_room(kind: type[Filter], size: dict[str, int], expected: list[str]) -> None:
    small = fleet.node("small", vcpus=2, memory_mb=1000, disk_gb=10)
    full = fleet.node("full", vcpus=4, memory_mb=4000, disk_gb=40)
    table = fleet.table([small, fleet.node("big", vcpus=8, memory_mb=8000, disk_gb=80), full])
    used = {"used_vcpus": 5, "used_memory_mb": 4001, "used_disk_gb": 41}  # a move made it over-full
    table.set_inventory(fleet.inventory(3, full, ONE, 2, **used), now=0.0)
    assert left(kind, table, fleet.spec(fleet.flavor(**size))) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cpu_allocation_ratio": 4.0}, 8),
        ({"cpu_allocation_ratio": 0.5}, 1),
    ],
)
def test_allocation_ratios_count(changes: dict[str, float], expected: int) -> None:
    table = fleet.table([fleet.node("h", vcpus=2, **changes)])
    assert left(CoreFilter, table, fleet.spec(fleet.flavor(vcpus=expected))) == ["h"]
    assert left(CoreFilter, table, fleet.spec(fleet.flavor(vcpus=expected + 1))) == []


def test_reserved_memory_and_disk_are_not_offered() -> None:
    table = fleet.table([fleet.node("h", memory_mb=1000, disk_gb=10, reserved_memory_mb=512, reserved_disk_gb=4)])
    assert left(RamFilter, table, fleet.spec(fleet.flavor(memory_mb=488))) == ["h"]
    assert left(RamFilter, table, fleet.spec(fleet.flavor(memory_mb=489))) == []
    assert left(DiskFilter, table, fleet.spec(fleet.flavor(root_gb=7))) == []


class TestComputeFilter:
    def test_silent_disabled_and_closed_hosts_are_out(self) -> None:
        names = ["up", "closed", "silent", "closed2", "disabled"]
        table = fleet.table([fleet.node(name) for name in names], states=(CellState.ENABLED, CellState.DISABLED))
        now = time.monotonic()
        table.set_service(ONE, "silent", now - 61, disabled=False, forced_down=False)
        table.set_service(ONE, "disabled", now, disabled=True, forced_down=False)
        assert left(ComputeFilter, table, fleet.spec(), alive_since=now - 60) == ["up"]
        assert left(ComputeFilter, table, fleet.spec(), alive_since=now - 60, returning_cells=frozenset({0, 1})) == ["up", "silent"]

    def test_silent_hosts_of_unreachable_cells_count_on_request(self) -> None:
        table = fleet.table([fleet.node(name) for name in ("silent", "other cell", "stopped")])
        now = time.monotonic()
        table.set_service(ONE, "silent", now - 100, disabled=False, forced_down=False)
        table.set_service(TWO, "other cell", now - 100, disabled=False, forced_down=False)
        table.set_service(ONE, "stopped", float("-inf"), disabled=False, forced_down=False)
        one = frozenset({table.cell_number(ONE)})
        assert left(ComputeFilter, table, fleet.spec(), alive_since=now - 60, unheard_cells=one) == ["silent"]

    def test_a_forced_host_may_be_disabled_not_dead(self) -> None:
        table = fleet.table([fleet.node(n) for n in ("off", "closed", "dead")], states=(CellState.ENABLED, CellState.DRAINING))
        now = time.monotonic()
        table.set_service(ONE, "off", now, disabled=True, forced_down=False)
        table.set_service(ONE, "dead", now - 100, disabled=False, forced_down=False)
        asked = fleet.spec(force_hosts=("off", "closed", "dead"))
        assert left(ComputeFilter, table, asked, alive_since=now - 60) == ["off"]


@pytest.mark.parametrize(("zone", "expected"), [("east", ["h1"]), ("nova", ["h2", "h3"]), ("mars", []), (None, ["h1", "h2", "h3"])])
def test_availability_zone(zone: str | None, expected: list[str]) -> None:
    table = fleet.table([fleet.node(n) for n in ("h1", "h2", "h3")], zones={"h1": "east"})
    assert left(AvailabilityZoneFilter, table, fleet.spec(availability_zone=zone)) == expected


def test_ignored_hosts_are_compared_without_case() -> None:
    table = fleet.table([fleet.node(n) for n in ("H1", "h2", "h3")])
    assert left(IgnoreHosts, table, fleet.spec(ignore_hosts=("h1", "H3", "unknown"))) == ["h2"]


@pytest.mark.parametrize(
    ("forced", "expected"),
    [
        ({"force_hosts": ("H1",)}, ["h1", "h1"]),
        ({"force_hosts": ("h1",), "force_nodes": ("n2",)}, ["h1"]),
        ({"force_nodes": ("n3",)}, ["h2"]),
        ({"force_nodes": ("N3",)}, []),
        ({"force_hosts": ("nobody",)}, []),
        ({}, ["h1", "h1", "h2"]),
    ],
)
def test_forced_hosts_and_nodes(forced: dict[str, Any], expected: list[str]) -> None:
    table = fleet.table([fleet.node("h1", node="n1"), fleet.node("h1", node="n2"), fleet.node("h2", node="n3")])
    assert left(ForceHosts, table, fleet.spec(**forced)) == expected


def test_excluded_cells() -> None:
    table = fleet.table([fleet.node("h1"), fleet.node("h2")])
    assert left(ExcludedCells, table, fleet.spec(excluded_cells=(ONE,))) == ["h2"]
    assert left(ExcludedCells, table, fleet.spec(excluded_cells=(ONE, TWO))) == []


class TestServerGroups:
    def table(self) -> HostTable:
        return fleet.table([fleet.node(n) for n in ("h1", "h2", "h3")])

    def slots(self, *places: tuple[str, bool]) -> list[Slot]:
        return [Slot(group_uuid="g", instance_uuid=f"i{n}", host=host, held=held) for n, (host, held) in enumerate(places)]

    def test_anti_affinity_keeps_members_apart(self) -> None:
        asked = fleet.spec(group=fleet.group(GroupPolicy.ANTI_AFFINITY))
        assert left(ServerGroupAntiAffinityFilter, self.table(), asked, slots=self.slots(("H1", False))) == ["h2", "h3"]

    def test_anti_affinity_up_to_the_policys_limit(self) -> None:
        asked = fleet.spec(group=fleet.group(GroupPolicy.ANTI_AFFINITY, most=2))
        slots = self.slots(("h1", False), ("h2", False), ("h2", False))
        assert left(ServerGroupAntiAffinityFilter, self.table(), asked, slots=slots) == ["h1", "h3"]

    def test_held_slots_count_until_they_yield(self) -> None:
        asked = fleet.spec(group=fleet.group(GroupPolicy.ANTI_AFFINITY))
        slots = self.slots(("h1", False), ("h2", True))
        assert left(ServerGroupAntiAffinityFilter, self.table(), asked, slots=slots) == ["h3"]
        assert left(ServerGroupAntiAffinityFilter, self.table(), asked, slots=slots, yielding=True) == ["h2", "h3"]

    def test_affinity_goes_where_the_group_is(self) -> None:
        asked = fleet.spec(group=fleet.group(GroupPolicy.AFFINITY))
        assert left(ServerGroupAffinityFilter, self.table(), asked, slots=self.slots(("h2", False))) == ["h2"]

    def test_the_first_member_goes_anywhere(self) -> None:
        asked = fleet.spec(group=fleet.group(GroupPolicy.AFFINITY))
        assert left(ServerGroupAffinityFilter, self.table(), asked) == ["h1", "h2", "h3"]

    @pytest.mark.parametrize("kind", [ServerGroupAffinityFilter, ServerGroupAntiAffinityFilter])
    @pytest.mark.parametrize("policy", [GroupPolicy.SOFT_AFFINITY, GroupPolicy.SOFT_ANTI_AFFINITY, None])
    def test_other_policies_are_not_theirs(self, kind: type[Filter], policy: GroupPolicy | None) -> None:
        asked = fleet.spec(group=fleet.group(policy) if policy else None)
        assert left(kind, self.table(), asked, slots=self.slots(("h2", False))) == ["h1", "h2", "h3"]


class TestAdapter:
    class EvenOnly:
        reason = "odd"

        def host_passes(self, host: HostState, spec: RequestSpec) -> bool:
            return int(host.host[1:]) % 2 == 0 and host.free_memory_mb >= spec.flavor.memory_mb

    def test_asks_the_sites_own_filter_for_each_host(self) -> None:
        table = fleet.table([fleet.node(f"h{n}") for n in range(5)])
        adapter = Adapter(SchedulerSettings(), "EvenOnly", self.EvenOnly())
        request = fleet.request(fleet.spec(), table)
        assert adapter.passes(Hosts(table, request), request).tolist() == [True, False, True, False, True]
        assert (adapter.name, adapter.reason) == ("EvenOnly", "odd")

    def test_shows_it_the_room_that_the_batch_leaves(self) -> None:
        table = fleet.table([fleet.node("h0", memory_mb=2048)])
        request = fleet.request(fleet.spec(fleet.flavor(memory_mb=1024)), table)
        adapter = Adapter(SchedulerSettings(), "EvenOnly", self.EvenOnly())
        assert [adapter.passes(Hosts(table, request, None, more), request).tolist() for more in range(3)] == [
            [True],
            [True],
            [False],
        ]

    def test_shows_it_attributes_and_what_aggregates_say(self) -> None:
        aggregates = [Aggregate(id=n, name=f"a{n}", hosts=("h0",), metadata={"ssd": f"{n}"}) for n in (2, 1)]
        nodes = [fleet.node("h0", attributes={"rack": "r1"}, hypervisor_version=3), fleet.node("h1")]
        table = fleet.table(nodes, aggregates=aggregates)
        hosts = Hosts(table, fleet.request(fleet.spec(), table))
        assert (hosts.state_at(0).attributes, hosts.state_at(0).metadata) == (
            {"hypervisor_version": 3, "rack": "r1"},
            {"ssd": ("1", "2")},
        )
        assert (hosts.state_at(1).attributes, hosts.state_at(1).metadata) == ({}, {})
