"""Choosing hosts for a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from objects.group import GroupPolicy
from objects.inventory import Slot
from objects.spec import RequestSpec
from scheduler.engine import engine
from scheduler.engine.always import IgnoreHosts
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.surveying import survey
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts, HostState
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.arrays import Mask
from scheduler.table.host_table import HostTable
from tests.support import fleet

ONE, TWO = fleet.CELLS


def place(
    table: HostTable,
    asked: RequestSpec,
    count: int = 1,
    driver: SchedulerDriver | None = None,
    slots: list[Slot] | None = None,
    **changes: Any,
) -> list[str]:
    """Hosts for a batch, in order."""
    request = fleet.request(asked, table, slots or [], **changes)
    with table.take_tentatively():
        return [table.hosts[row] for row in chosen(table, request, count, driver or fleet.driver())]


def chosen(table: HostTable, request: Request, count: int, driver: SchedulerDriver) -> list[int]:
    return engine.choose_rows(table, driver, request, survey(table, driver, request), count)


def equal(count: int, **changes: Any) -> HostTable:
    return fleet.table([fleet.node(f"h{n}", **changes) for n in range(count)])


class TestCounts:
    def test_every_filter_says_how_many_it_left(self) -> None:
        table = fleet.table([fleet.node("h1", memory_mb=512), fleet.node("h2", vcpus=1), fleet.node("h3"), fleet.node("h4")])
        table.set_service(TWO, "h4", -1e9, disabled=False, forced_down=False)
        request = fleet.request(fleet.spec(fleet.flavor(vcpus=2, memory_mb=1024)), table, alive_since=0.0)
        found = survey(table, fleet.driver(enabled_filters=("ComputeFilter", "RamFilter", "CoreFilter")), request)
        assert [(c.name, c.before, c.after) for c in found.filter_counts] == [
            ("ComputeFilter", 4, 3),
            ("RamFilter", 3, 2),
            ("CoreFilter", 2, 1),
        ]
        assert [table.hosts[row] for row in found.passing_rows] == ["h3"]

    def test_filters_after_an_empty_result_are_not_run(self) -> None:
        table = equal(3)
        request = fleet.request(fleet.spec(fleet.flavor(memory_mb=10**9, vcpus=10**9)), table)
        found = survey(table, fleet.driver(enabled_filters=("RamFilter", "CoreFilter")), request)
        assert [(c.name, c.after) for c in found.filter_counts] == [("RamFilter", 0)]

    def test_ineligible_hosts_are_counted_first(self) -> None:
        table = equal(3)
        table.set_topology(fleet.cells(), {"h0": ONE}, {})
        found = survey(table, fleet.driver(), fleet.request(fleet.spec(), table))
        first = found.filter_counts[0]
        assert (first.name, first.before, first.after) == ("HostMapping", 3, 1)

    def test_request_demands_are_counted_only_where_present(self) -> None:
        table = equal(3)
        names = {c.name for c in survey(table, fleet.driver(), fleet.request(fleet.spec(), table)).filter_counts}
        assert "IgnoreHosts" not in names
        request = fleet.request(fleet.spec(ignore_hosts=("h1",)), table)
        counts = {c.name: c.after for c in survey(table, fleet.driver(), request).filter_counts}
        assert counts["IgnoreHosts"] == 2


class TestSpreading:
    def test_a_batch_spreads_evenly_over_equal_hosts(self) -> None:
        assert set(Counter(place(equal(8), fleet.spec(), 24)).values()) == {3}

    def test_the_emptier_host_gets_more(self) -> None:
        table = fleet.table([fleet.node("big", vcpus=32, memory_mb=65536), fleet.node("small", vcpus=16, memory_mb=32768)])
        driver = fleet.driver(enabled_weighers=("RAMWeigher",))
        hosts = place(table, fleet.spec(fleet.flavor(memory_mb=4096)), 12, driver)
        assert Counter(hosts) == {"big": 10, "small": 2}

    def test_a_negative_multiplier_packs(self) -> None:
        names = ("RAMWeigher", "CPUWeigher", "DiskWeigher")
        driver = fleet.driver(
            enabled_weighers=names, ram_weight_multiplier=-1.0, cpu_weight_multiplier=-1.0, disk_weight_multiplier=-1.0
        )
        assert sorted(Counter(place(equal(4, vcpus=10), fleet.spec(), 25, driver)).values()) == [5, 10, 10]

    def test_counting_instances_alone_spreads_from_an_empty_fleet(self) -> None:
        driver = fleet.driver(enabled_weighers=("NumInstancesWeigher",), num_instances_weight_multiplier=-1.0)
        assert set(Counter(place(equal(4), fleet.spec(), 8, driver)).values()) == {2}

    def test_it_stops_where_nothing_fits_any_more(self) -> None:
        assert len(place(equal(3, vcpus=2), fleet.spec(), 10)) == 6


class TestChance:
    def test_ties_fall_by_seed(self) -> None:
        table = equal(50)
        first = [place(table, fleet.spec(), 1, seed=seed)[0] for seed in range(20)]
        assert len(set(first)) > 10
        assert first == [place(table, fleet.spec(), 1, seed=seed)[0] for seed in range(20)]

    def test_ties_do_not_depend_on_table_position(self) -> None:
        nodes = [fleet.node(f"h{n}") for n in range(10)]
        homes = dict.fromkeys((n.host for n in nodes), ONE)
        winners = set()
        for order in (range(10), reversed(range(10))):
            table = HostTable()
            table.set_topology(fleet.cells(), homes, {})
            for n in order:
                table.set_inventory(fleet.inventory(n + 1, nodes[n], ONE), now=0.0)
            fleet.tell_cells(table, nodes, homes)
            winners.update(place(table, fleet.spec(), 1))
        assert len(winners) == 1

    def test_without_shuffling_the_first_of_equals_wins(self) -> None:
        driver = fleet.driver(shuffle_best_same_weighed_hosts=False)
        assert [place(equal(5), fleet.spec(), 1, driver, seed=seed) for seed in range(5)] == [["h0"]] * 5

    def test_the_winner_is_drawn_from_the_best_few(self) -> None:
        table = fleet.table([fleet.node(f"h{n}", memory_mb=65536 - 1000 * n) for n in range(10)])
        driver = fleet.driver(host_subset_size=3, enabled_weighers=("RAMWeigher",))
        winners = {place(table, fleet.spec(), 1, driver, seed=seed)[0] for seed in range(60)}
        assert winners == {"h0", "h1", "h2"}

    def test_the_draw_does_not_depend_on_row_order(self) -> None:
        """Two schedulers with the same knowledge have heard of the hosts in another order."""
        nodes = [fleet.node(f"h{n}", memory_mb=65536 - 1000 * (n // 2)) for n in range(8)]
        homes = {node.host: fleet.CELLS[n % len(fleet.CELLS)] for n, node in enumerate(nodes)}

        def winners(order: Sequence[int]) -> list[list[str]]:
            table = HostTable()
            table.set_topology(fleet.cells(), homes, {}, ())
            for n in order:
                table.set_inventory(fleet.inventory(n + 1, nodes[n], homes[nodes[n].host]), now=0.0)
            fleet.tell_cells(table, [nodes[n] for n in order], homes)
            driver = fleet.driver(host_subset_size=4, enabled_weighers=("RAMWeigher",))
            return [place(table, fleet.spec(), 1, driver, seed=seed) for seed in range(20)]

        assert winners(range(8)) == winners([5, 0, 7, 3, 1, 6, 2, 4])

    def test_an_oversized_subset_is_the_fleet(self) -> None:
        driver = fleet.driver(host_subset_size=99)
        assert sorted(Counter(place(equal(3, vcpus=2), fleet.spec(), 6, driver)).values()) == [2, 2, 2]


class TestForcedHosts:
    def test_only_filters_that_guard_the_host_are_asked(self) -> None:
        table = fleet.table([fleet.node("h0"), fleet.node("h1")], zones={"h1": "east"})
        assert place(table, fleet.spec(force_hosts=("H1",), availability_zone="nova"), 1) == ["h1"]

    def test_a_forced_host_that_is_full_takes_nothing(self) -> None:
        assert place(equal(3, vcpus=1), fleet.spec(force_hosts=("h1",)), 3) == ["h1"]


class TestGroups:
    def test_members_of_a_batch_keep_apart(self) -> None:
        hosts = place(equal(6), fleet.spec(group=fleet.group(GroupPolicy.ANTI_AFFINITY)), 8)
        assert sorted(hosts) == [f"h{n}" for n in range(6)]

    def test_a_host_holds_as_many_as_policy_allows(self) -> None:
        hosts = place(equal(3), fleet.spec(group=fleet.group(GroupPolicy.ANTI_AFFINITY, most=2)), 7)
        assert Counter(hosts) == {"h0": 2, "h1": 2, "h2": 2}

    def test_batch_members_stay_together_until_hosts_are_full(self) -> None:
        hosts = place(equal(5, vcpus=4), fleet.spec(group=fleet.group(GroupPolicy.AFFINITY)), 6)
        assert len(hosts) == 4
        assert len(set(hosts)) == 1

    def test_two_nodes_of_one_host_are_one_place(self) -> None:
        table = fleet.table([fleet.node("h", node="n1"), fleet.node("h", node="n2")])
        assert len(place(table, fleet.spec(group=fleet.group(GroupPolicy.ANTI_AFFINITY)), 2)) == 1

    def test_soft_affinity_gathers_and_soft_anti_affinity_spreads(self) -> None:
        table = equal(4, vcpus=10)
        assert len(set(place(table, fleet.spec(group=fleet.group(GroupPolicy.SOFT_AFFINITY)), 8))) == 1
        packing = {"ram_weight_multiplier": -0.1, "cpu_weight_multiplier": -0.1, "disk_weight_multiplier": -0.1}
        spread = place(table, fleet.spec(group=fleet.group(GroupPolicy.SOFT_ANTI_AFFINITY)), 8, fleet.driver(**packing))
        assert set(Counter(spread).values()) == {2}

    def test_held_slots_are_taken(self) -> None:
        slots = [Slot(group_uuid="g", instance_uuid="other", host=host, held=True) for host in ("h0", "h1")]
        assert place(equal(3), fleet.spec(group=fleet.group(GroupPolicy.ANTI_AFFINITY)), 3, slots=slots) == ["h2"]


class TestSitesOwnFilter:
    class Counting:
        asked: list[str]

        def __init__(self) -> None:
            self.asked = []

        def host_passes(self, host: HostState, spec: RequestSpec) -> bool:
            self.asked.append(host.host)
            return host.host != "h1"

    def test_a_site_filter_sees_remaining_hosts_only(self) -> None:
        from scheduler.filters.adapter import Adapter

        table = fleet.table([fleet.node("h0", vcpus=0), fleet.node("h1"), fleet.node("h2")])
        own = self.Counting()
        driver = fleet.driver(enabled_filters=("CoreFilter",))
        driver.filters = (*driver.filters, Adapter(driver.filters[0].settings, "Counting", own))
        assert place(table, fleet.spec(), 1, driver) == ["h2"]
        assert "h0" not in own.asked
        assert own.asked.count("h1") <= 1

    def test_a_site_filter_sees_best_hosts_until_enough(self) -> None:
        from scheduler.filters.adapter import Adapter

        table = fleet.table([fleet.node(f"h{n}", vcpus=40 - n, memory_mb=(40 - n) * 1024) for n in range(40)])
        own = self.Counting()
        driver = fleet.driver()
        driver.filters = (*driver.filters, Adapter(driver.filters[0].settings, "Counting", own))
        assert place(table, fleet.spec(), 1, driver) == ["h0"]
        assert own.asked == ["h0"]
        request = fleet.request(fleet.spec(), table)
        found = survey(table, driver, request)
        assert [table.hosts[row] for row in found.best_rows(3)[0]] == ["h0", "h2", "h3"]
        assert own.asked[1:] == ["h0", "h1", "h2", "h3"]
        assert (found.filter_counts[-1].before, found.filter_counts[-1].after, found.filter_counts[-1].partial) == (4, 3, True)
        assert found.passing_rows.size == 39
        assert (found.filter_counts[-1].before, found.filter_counts[-1].after, found.filter_counts[-1].partial) == (40, 39, False)
        assert len(own.asked) == 41


def test_confirming_asks_the_same_of_single_rows() -> None:
    table = fleet.table([fleet.node("h0", vcpus=2), fleet.node("h1", vcpus=1)])
    request = fleet.request(fleet.spec(fleet.flavor(vcpus=2)), table)
    driver = fleet.driver()
    assert engine.fitting_rows(driver, table, request, np.array([1, 0])).tolist() == [False, True]
    assert engine.fitting_rows(driver, table, request, np.array([0]), 1).tolist() == [False]


def test_row_views_agree_with_table_views() -> None:
    table = fleet.table([fleet.node(f"h{n}", vcpus=n) for n in range(5)])
    request = fleet.request(fleet.spec(), table)
    rows = np.array([4, 2])
    assert Hosts(table, request, rows).free_vcpus.tolist() == [4.0, 2.0]
    assert Hosts(table, request, rows, np.array([1, 2])).free_vcpus.tolist() == [3.0, 0.0]
    assert Hosts(table, request).free_vcpus.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("count", [1, 5])
def test_nothing_is_left_behind_in_the_table(count: int) -> None:
    table = equal(3)
    before = table.free_memory_mb[:3].copy()
    place(table, fleet.spec(), count)
    assert np.array_equal(before, table.free_memory_mb[:3])


def test_a_filter_skips_requests_without_its_inputs() -> None:
    class Counting(IgnoreHosts):
        asked = 0

        def passes(self, hosts: Hosts, request: Request) -> Mask | None:
            self.asked += 1
            return super().passes(hosts, request)

    table = fleet.table([fleet.node("h1"), fleet.node("h2")])
    counting = Counting(SchedulerSettings())
    driver = fleet.driver()
    driver.filters = (counting, *driver.filters)
    for hints, times in ((("h2",), 3), ((), 0)):
        counting.asked = 0
        request = fleet.request(fleet.spec(ignore_hosts=hints), table)
        for _ in range(3):
            assert survey(table, driver, request).passing_rows.tolist() == ([0] if hints else [0, 1])
        assert counting.asked == times
