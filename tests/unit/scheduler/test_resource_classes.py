"""Custom resource classes in the host table, in plans and in refusals."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects.flavor import Flavor
from objects.group import GroupPolicy
from scheduler.engine import engine
from scheduler.engine.alternates import Alternates
from scheduler.engine.always import ResourceClassFilter
from scheduler.engine.surveying import survey
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.columns import SETTLE_AFTER_S
from scheduler.table.host_table import HostTable
from scheduler.table.resource_classes import ResourceClass
from tests.support import fleet
from tests.support.examples import examples

NAMES = ("CUSTOM_A", "CUSTOM_B")
AMOUNTS = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 6))
WANTED = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 6), min_size=1)
FLEETS = st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=8)
"""What each host offers, and what is claimed of it: sometimes more, or of what it does not offer."""
FILTER = ResourceClassFilter(SchedulerSettings())


def asking(**amounts: int) -> Flavor:
    return fleet.flavor_asking(amounts)


def made(hosts: list[tuple[dict[str, int], dict[str, int]]]) -> HostTable:
    nodes = [fleet.node(f"h{n}", resources=offered) for n, (offered, _) in enumerate(hosts)]
    table = fleet.table(nodes)
    for n, (node, (_, claimed)) in enumerate(zip(nodes, hosts, strict=True)):
        table.set_inventory(fleet.inventory(n + 1, node, fleet.CELLS[n % 2], 2, used_resources=claimed), now=0.0)
    return table


def free(table: HostTable, name: str = "CUSTOM_GPU") -> list[float]:
    return [float(amount) for amount in Hosts(table, fleet.request(fleet.spec(), table)).free_resource(name)]


def gpus(*amounts: int, **changes: object) -> HostTable:
    return fleet.table([fleet.node(f"h{n}", resources={"CUSTOM_GPU": gpu} if gpu else {}) for n, gpu in enumerate(amounts)])


class TestFilter:
    @given(FLEETS, WANTED, st.integers(0, 2))
    @examples(150)
    def test_against_a_look_at_each_host(
        self, hosts: list[tuple[dict[str, int], dict[str, int]]], wanted: dict[str, int], more: int
    ) -> None:
        table = made(hosts)
        request = fleet.request(fleet.spec(asking(**wanted)), table)
        mask = FILTER.passes(Hosts(table, request, None, more), request)
        assert mask is not None
        assert mask.tolist() == [
            all(offered.get(name, 0) - claimed.get(name, 0) >= (more + 1) * amount for name, amount in wanted.items())
            for offered, claimed in hosts
        ]
        rows = np.arange(table.size)[::-1]
        assert FILTER.passes(Hosts(table, request, rows, more), request).tolist() == mask.tolist()[::-1]  # type: ignore[union-attr]  # a mask

    def test_a_request_without_classes_is_skipped(self) -> None:
        table = gpus(2, 0)
        request = fleet.request(fleet.spec(), table)
        assert FILTER.passes(Hosts(table, request), request) is None
        assert FILTER.on_demand

    def test_the_class_filter_applies_always_even_when_forced(self) -> None:
        table = gpus(1, 0)
        for driver in (fleet.driver(enabled_filters=()), fleet.driver(driver="chance")):
            request = fleet.request(fleet.spec(asking(CUSTOM_GPU=1)), table)
            assert survey(table, driver, request).passing_rows.tolist() == [0]
            request = fleet.request(fleet.spec(asking(CUSTOM_GPU=1), force_hosts=("h1",)), table)
            assert survey(table, driver, request).passing_rows.tolist() == []

    @pytest.mark.parametrize(
        ("wanted", "said"),
        [
            ({"CUSTOM_FPGA": 1}, "no host offers CUSTOM_FPGA"),
            ({"CUSTOM_GPU": 1, "CUSTOM_FPGA": 1, "CUSTOM_QAT": 1}, "no host offers CUSTOM_FPGA, CUSTOM_QAT"),
            ({"CUSTOM_GPU": 3}, "not enough CUSTOM_GPU"),
            ({"CUSTOM_GPU": 2, "CUSTOM_NIC": 1}, "not enough CUSTOM_GPU and CUSTOM_NIC on any host left"),
        ],
    )
    def test_a_refusal_names_the_class(self, wanted: dict[str, int], said: str) -> None:
        table = fleet.table([fleet.node("a", resources={"CUSTOM_GPU": 2}), fleet.node("b", resources={"CUSTOM_NIC": 2})])
        driver = fleet.driver()
        counts = survey(table, driver, fleet.request(fleet.spec(asking(**wanted)), table)).filter_counts
        assert counts[-1].reason == said
        text = f"No valid host was found: of 2 hosts 0 were left by ResourceClassFilter ({said})."
        assert driver.refusal_message(counts, 2, 0, 1) == text

    def test_a_class_no_longer_offered_is_absent(self) -> None:
        table = gpus(1)
        table.set_inventory(fleet.inventory(1, fleet.node("h0"), fleet.CELLS[0], 2), now=0.0)
        counts = survey(table, fleet.driver(), fleet.request(fleet.spec(asking(CUSTOM_GPU=1)), table)).filter_counts
        assert counts[-1].reason == "no host offers CUSTOM_GPU"


class TestTable:
    def test_unknown_guests_count_until_claims_cover_them(self) -> None:
        table, node = gpus(4), fleet.node("h0", resources={"CUSTOM_GPU": 4}, resources_used={"CUSTOM_GPU": 3})
        table.set_nodes(fleet.CELLS[0], [node])
        assert free(table) == [1]
        table.set_inventory(fleet.inventory(1, node, fleet.CELLS[0], 2, used_resources={"CUSTOM_GPU": 1}), now=100.0)
        assert free(table) == [0], "a claim comes on top: it may be anything but the guests that are there"
        table.settle_counts(100.0 + SETTLE_AFTER_S / 2)
        assert free(table) == [0]
        table.settle_counts(100.0 + SETTLE_AFTER_S + 1)
        assert free(table) == [1], "of 3 in use 1 is claimed"

    def test_the_first_ledger_word_covers_earlier_reports(self) -> None:
        node = fleet.node("h0", resources={"CUSTOM_GPU": 4}, resources_used={"CUSTOM_GPU": 3})
        table = HostTable()
        table.set_nodes(fleet.CELLS[0], [node])
        table.set_inventory(fleet.inventory(1, node, fleet.CELLS[0], 1, used_resources={"CUSTOM_GPU": 3}), now=0.0)
        assert free(table) == [1]

    def test_what_a_plan_takes_is_given_back(self) -> None:
        table = gpus(4, 4)
        with table.take_tentatively():
            table.take_room(0, 1, 1, 1, {"CUSTOM_GPU": 3})
            mark = table.undo_mark
            table.take_room(1, 1, 1, 1, {"CUSTOM_GPU": 4, "CUSTOM_NEW": 1})
            assert (free(table), free(table, "CUSTOM_NEW")) == ([1, 0], [0, -1])
            table.give_back(mark)
            assert (free(table), free(table, "CUSTOM_NEW")) == ([1, 4], [0, 0])
        assert free(table) == [4, 4]

    def test_a_removed_host_leaves_its_row_clean(self) -> None:
        table = gpus(4)
        table.remove_row(0)
        node = fleet.node("new")
        table.set_inventory(fleet.inventory(9, node, fleet.CELLS[0]), now=0.0)
        table.set_nodes(fleet.CELLS[0], [node])
        assert table.hosts == ["new"]
        assert free(table) == [0]

    def test_a_class_grows_with_the_fleet(self) -> None:
        table = fleet.table([fleet.node(f"h{n}", resources={"CUSTOM_GPU": 1} if n in (3, 150) else {}) for n in range(200)])
        assert np.flatnonzero(free(table)).tolist() == [3, 150]
        assert free(table, "CUSTOM_UNKNOWN") == [0] * 200
        each = ResourceClass(1)
        each.grow_to(1000)
        assert each.cap.size == each.claimed.size == each.reported.size == each.unaccounted.size >= 1000

    def test_a_site_filter_sees_free_classes(self) -> None:
        table = fleet.table([fleet.node("a", resources={"CUSTOM_GPU": 4}), fleet.node("b", resources={"CUSTOM_NIC": 1})])
        request = fleet.request(fleet.spec(asking(CUSTOM_GPU=3)), table)
        assert Hosts(table, request, None, 1).state_at(0).free_resources == {"CUSTOM_GPU": 1}
        assert Hosts(table, request).state_at(1).free_resources == {"CUSTOM_NIC": 1}


def chosen(table: HostTable, request: Request, count: int) -> list[int]:
    driver = fleet.driver()
    return engine.choose_rows(table, driver, request, survey(table, driver, request), count)


GROUPS = st.sampled_from([None, GroupPolicy.ANTI_AFFINITY, GroupPolicy.AFFINITY, GroupPolicy.SOFT_ANTI_AFFINITY])


@given(FLEETS, WANTED, st.integers(1, 25), GROUPS)
@examples(200)
def test_batches_take_all_that_fits_and_never_more(
    hosts: list[tuple[dict[str, int], dict[str, int]]], wanted: dict[str, int], count: int, policy: GroupPolicy | None
) -> None:
    table = made(hosts)
    group = fleet.group(policy) if policy else None
    request = fleet.request(fleet.spec(asking(**wanted), group=group), table)
    with table.take_tentatively():
        taken = Counter(chosen(table, request, count))
    fitting = [
        max(0, min((offered.get(name, 0) - claimed.get(name, 0)) // amount for name, amount in wanted.items()))
        for offered, claimed in hosts
    ]
    fitting = [min(room, 16) for room in fitting]  # vCPUs
    assert all(times <= fitting[row] for row, times in taken.items())
    if policy is GroupPolicy.ANTI_AFFINITY:
        assert sum(taken.values()) == min(count, sum(room > 0 for room in fitting))
    elif policy is not GroupPolicy.AFFINITY:
        assert sum(taken.values()) == min(count, sum(fitting))
    assert all(free(table, name) == [o.get(name, 0) - c.get(name, 0) for o, c in hosts] for name in NAMES)


@given(FLEETS, WANTED, st.integers(1, 6))
@examples(100)
def test_alternates_have_room_when_the_batch_is_placed(
    hosts: list[tuple[dict[str, int], dict[str, int]]], wanted: dict[str, int], count: int
) -> None:
    table = made(hosts)
    request = fleet.request(fleet.spec(asking(**wanted)), table)
    driver = fleet.driver()
    with table.take_tentatively():
        found = survey(table, driver, request)
        rows = engine.choose_rows(table, driver, request, found, count)
        others = Alternates(table, driver, request, found).choose_rows([(f"i{n}", row) for n, row in enumerate(rows)])
        for alternates in others.values():
            assert engine.fitting_rows(driver, table, request, np.array(alternates, dtype=np.int64)).all()


def test_standard_classes_take_the_place_of_the_size() -> None:
    table = fleet.table([fleet.node("h0", vcpus=1, memory_mb=1024)])
    request = fleet.request(fleet.spec(fleet.flavor_asking({"VCPU": 0, "MEMORY_MB": 1024}, fleet.flavor(8, 512, 0))), table)
    with table.take_tentatively():
        assert chosen(table, request, 2) == [0]
        assert (table.free_vcpus[0], table.free_memory_mb[0]) == (1, 0)
