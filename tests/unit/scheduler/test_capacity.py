"""Counted capacity is what the engine places, server after server, until none fits any more."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects.aggregate import Aggregate
from objects.cell import CellState
from objects.flavor import Flavor
from objects.spec import RequestSpec
from scheduler.engine import capacity, engine
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.surveying import survey
from scheduler.filters.adapter import Adapter
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import HostState
from scheduler.framework.settings import DEFAULT_FILTERS, SchedulerSettings
from scheduler.table.host_table import HostTable
from tests.support import fleet

LOADED = (*DEFAULT_FILTERS, "IoOpsFilter", "NumInstancesFilter")
sizes = st.builds(fleet.flavor, st.integers(1, 6), st.integers(1, 24000), st.integers(0, 300))
nodes = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 70000), st.integers(1, 1500), st.integers(0, 6)), max_size=6)


def table_of(found: list[tuple[int, int, int, int]], **changes: object) -> HostTable:
    hosts = [
        fleet.node(f"h{n}", vcpus=vcpus, memory_mb=memory, disk_gb=disk, running_vms=guests, cpu_allocation_ratio=1.3)
        for n, (vcpus, memory, disk, guests) in enumerate(found)
    ]
    ssd = Aggregate(id=3, name="ssd", hosts=tuple(node.host for node in hosts[::2]), metadata={"ssd": "true"})
    slow = Aggregate(id=4, name="slow", hosts=("h0", "h1"), metadata={"max_instances_per_host": "5"})
    return fleet.table(hosts, {"h0": "north"}, [ssd, slow], **changes)  # type: ignore[arg-type]  # of the cells


def request_of(table: HostTable, size: Flavor) -> Request:
    return fleet.request(fleet.spec(size), table, alive_since=time.monotonic() - 60.0)


def placed(table: HostTable, driver: SchedulerDriver, request: Request) -> Counter[int]:
    """How many servers the engine puts on each row."""
    with table.take_tentatively():
        return Counter(driver.place_instances(table, request, survey(table, driver, request), 5000))


@pytest.mark.parametrize("filters", [DEFAULT_FILTERS, LOADED, ("ComputeFilter", "CoreFilter")], ids=["default", "loaded", "few"])
@given(nodes, sizes)
def test_each_host_takes_what_the_engine_puts_there(
    filters: tuple[str, ...], found: list[tuple[int, int, int, int]], size: Flavor
) -> None:
    table = table_of(found)
    driver = fleet.driver(enabled_filters=filters, max_io_ops_per_host=9, max_instances_per_host=11)
    counted = capacity.host_room(table, driver, request_of(table, size))
    expected = placed(table, driver, request_of(table, size))
    assert dict(zip(counted.rows.tolist(), counted.counts.tolist(), strict=True)) == expected
    assert sum(counted.limits.values()) == len(expected)
    told = capacity.flavor_room(table, "f", counted)
    assert told.servers == expected.total() == sum(each.servers for each in told.zones) == sum(each.servers for each in told.cells)
    for place, rows in (("ssd", range(0, len(found), 2)), ("slow", range(min(2, len(found))))):
        sums = [each.servers for each in told.aggregates if each.name == place]
        assert sum(sums) == sum(expected[row] for row in rows)


@given(nodes, st.lists(sizes, min_size=2, max_size=3))
def test_sets_fit_as_often_as_is_said(found: list[tuple[int, int, int, int]], flavors: list[Flavor]) -> None:
    """The sets that fit at least are really placed; one more than at most is not, in whatever order."""
    table = table_of(found)
    driver = fleet.driver(enabled_filters=LOADED, max_io_ops_per_host=9, max_instances_per_host=11)
    requests = [request_of(table, size) for size in flavors]
    alone = [capacity.host_room(table, driver, request) for request in requests]
    bounds = capacity.sets_room(table, driver, requests, alone)
    assert 0 <= bounds.least <= bounds.most
    with table.take_tentatively():
        for row in range(len(found)):
            while _take_set(table, driver, requests, row):
                bounds = bounds.__replace__(least=bounds.least - 1)
        assert bounds.least <= 0, "so many sets fit whole on one host each"
    with table.take_tentatively():
        whole = 0
        while all(driver.place_instances(table, each, survey(table, driver, each), 1) for each in requests):
            whole += 1
        assert whole <= bounds.most


def _take_set(table: HostTable, driver: SchedulerDriver, requests: list[Request], row: int) -> bool:
    mark = table.undo_mark
    for request in requests:
        if not engine.fitting_rows(driver, table, request, np.array([row]))[0]:
            table.give_back(mark)
            return False
        engine.take_row(table, request, row)
    return True


def test_a_request_taking_nothing_counts_to_a_limit() -> None:
    table = table_of([(4, 4096, 100, 0)])
    nothing = fleet.flavor_asking({"VCPU": 0, "MEMORY_MB": 0, "DISK_GB": 0})
    counted = capacity.host_room(table, fleet.driver(), request_of(table, nothing))
    assert (counted.counts.tolist(), counted.limits) == ([capacity.HOST_LIMIT], {})


def test_custom_resources_and_closed_cells_count() -> None:
    hosts = [fleet.node(f"h{n}", resources={"CUSTOM_GPU": n}) for n in range(4)]
    asked = fleet.flavor_asking({"CUSTOM_GPU": 1})
    table = fleet.table(hosts, states=(CellState.ENABLED, CellState.DISABLED))
    told = capacity.flavor_room(table, "f", capacity.host_room(table, fleet.driver(), request_of(table, asked)))
    assert [(each.name, each.servers) for each in told.cells] == [("cell1", 2), ("cell2", 0)]
    assert told.limits == {"ResourceClassFilter": 1}
    assert (told.filters[0].name, told.filters[0].after) == ("ResourceClassFilter", 3)


def test_a_site_filter_limits_capacity() -> None:
    class AtMostThree:
        reason = "full enough"

        def host_passes(self, host: HostState, spec: RequestSpec) -> bool:
            return host.instances < 3

    table = table_of([(40, 65536, 1000, 0), (2, 65536, 1000, 0)])
    driver = fleet.driver()
    driver.filters = (*driver.filters, Adapter(SchedulerSettings(), "AtMostThree", AtMostThree()))
    counted = capacity.host_room(table, driver, request_of(table, fleet.flavor()))
    assert (counted.counts.tolist(), counted.limits) == ([3, 2], {"AtMostThree": 1, "CoreFilter": 1})
