"""Count how many more servers fit. Arithmetic bounds the number of each host, and the filters of production confirm it.

Every function needs the table's lock, and changes nothing. The numbers are exact if each filter that passes a host with n servers
of a request more on it also passes it with fewer. All filters of this project do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from objects.capacity import FlavorRoom, PlaceRoom, SetRoom
from objects.decision import FilterCount
from scheduler.engine import engine
from scheduler.engine.criteria import Criteria
from scheduler.filters.capacity import CoreFilter, DiskFilter, RamFilter
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.table.arrays import Floats, Ints, Mask
from scheduler.table.host_table import HostTable

HOST_LIMIT = 10_000
"""More servers are not counted on one host: a request that takes nothing fits without end."""

AMOUNTS = {"vcpus": CoreFilter, "memory_mb": RamFilter, "disk_gb": DiskFilter}
"""Each amount of a request, and the filter that limits it."""


class HostRoom(NamedTuple):
    """``counts``: how many servers each of ``rows`` takes, at least one. Other rows take none.

    ``filters``: how many hosts each filter left. ``limits``: by filter, how many of ``rows`` it keeps from one more server.
    """

    rows: Ints
    counts: Ints
    filters: tuple[FilterCount, ...]
    limits: dict[str, int]

    def counts_of_all(self, table: HostTable) -> Ints:
        """The counts of all rows of the table."""
        counts = np.zeros(table.size, dtype=np.int64)
        counts[self.rows] = self.counts
        return counts


def host_room(table: HostTable, driver: Criteria, request: Request) -> HostRoom:
    """How many servers of the request each host takes, whatever the others take."""
    filters = driver.chain_for(request).all_filters
    mask, seen = engine.narrow_hosts(filters, Hosts(table, request), request)
    rows: Ints = np.flatnonzero(mask)
    counts = count_takes(table, driver, request, rows, HOST_LIMIT)
    _, refusals = engine.narrow_hosts(filters, Hosts(table, request, rows, counts), request)
    return HostRoom(
        rows, counts, seen, {count.name: count.before - count.after for count in refusals if count.after < count.before}
    )


def count_takes(table: HostTable, driver: Criteria, request: Request, rows: Ints, limit: int) -> Ints:
    """How many servers of the request each of these rows takes, whatever the others take, up to ``limit``. All take one."""
    counts = np.full(rows.size, float(limit))
    for amount, free in _limited_amounts(table, driver, request, rows):
        np.minimum(counts, free / amount, out=counts)
    largest: Ints = np.maximum(counts, 1.0).astype(np.int64)

    def rows_fit(positions: Ints, number: Ints) -> Mask:
        return engine.fitting_rows(driver, table, request, rows[positions], number - 1)

    several: Ints = np.flatnonzero(largest > 1)
    short = several[~rows_fit(several, largest[several])]
    largest[short] = _largest_fitting(rows_fit, short, np.ones(short.size, dtype=np.int64), largest[short] - 1)
    return largest


def flavor_room(table: HostTable, name: str, hosts_room: HostRoom) -> FlavorRoom:
    """The sums of what the hosts take, by place."""
    counts = hosts_room.counts_of_all(table)
    takers = (counts > 0).astype(np.int64)
    is_in_cell = table.cell[: table.size] >= 0
    return FlavorRoom(
        flavor=name,
        servers=int(counts.sum()),
        hosts=hosts_room.rows.size,
        cells=tuple(_sum_by_place(table.cell[: table.size], is_in_cell, counts, takers, [cell.name for cell in table.cells])),
        zones=tuple(_sum_by_place(table.zone[: table.size], is_in_cell, counts, takers, table.zones)),
        aggregates=tuple(_sum_by_aggregate(table, counts, takers)),
        filters=hosts_room.filters,
        limits=hosts_room.limits,
    )


def sets_room(table: HostTable, driver: Criteria, requests: Sequence[Request], alone: Sequence[HostRoom]) -> SetRoom:
    """Bounds of the number of sets of one server of each request. ``alone``: the room of each.

    At least: the sets that fit whole on one host. At most: what the request that fits least often allows, and what all hosts that
    take any of them have of each amount together.
    """
    everything = _sum_requests(requests)
    most = min(int(host_counts.counts.sum()) for host_counts in alone)
    takers = np.unique(np.concatenate([host_counts.rows for host_counts in alone]))
    for amount, free in _limited_amounts(table, driver, everything, takers):
        most = min(most, int(np.maximum(free, 0.0).sum() // amount))
    return SetRoom(least=min(_whole_sets(table, driver, requests, everything), most), most=most)


def _whole_sets(table: HostTable, driver: Criteria, requests: Sequence[Request], everything: Request) -> int:
    """How many sets fit if each is on one host."""
    size = len(requests)
    counts = np.full(table.size, HOST_LIMIT, dtype=np.int64)
    for request in requests:  # the amounts: the filters of each request, with the amounts of all
        counts = np.minimum(counts, host_room(table, driver, _with_amounts(request, everything)).counts_of_all(table))
    for request in requests:  # the number: as many servers as the sets have
        bare = dataclasses.replace(request, vcpus=0, memory_mb=0, disk_gb=0, resources={}, _memory={})
        rows: Ints = np.flatnonzero(counts)

        def rows_fit(positions: Ints, number: Ints, bare: Request = bare, rows: Ints = rows) -> Mask:
            passed: Mask = engine.fitting_rows(driver, table, bare, rows[positions], np.maximum(size * number - 1, 0)) | (
                number == 0
            )
            return passed

        every: Ints = np.arange(rows.size)
        short: Ints = np.flatnonzero(~rows_fit(every, counts[rows]))
        counts[rows[short]] = _largest_fitting(rows_fit, short, np.zeros(short.size, dtype=np.int64), counts[rows[short]] - 1)
    return int(counts.sum())


def _sum_requests(requests: Sequence[Request]) -> Request:
    """The first request with the amounts of all."""
    resources: dict[str, int] = {}
    for request in requests:
        for name, amount in request.resources.items():
            resources[name] = resources.get(name, 0) + amount
    return dataclasses.replace(
        requests[0],
        vcpus=sum(request.vcpus for request in requests),
        memory_mb=sum(request.memory_mb for request in requests),
        disk_gb=sum(request.disk_gb for request in requests),
        resources=resources,
        _memory={},
    )


def _with_amounts(request: Request, like: Request) -> Request:
    """The request with the amounts of another."""
    amounts = {name: getattr(like, name) for name in (*AMOUNTS, "resources")}
    return dataclasses.replace(request, **amounts, _memory={})


def _limited_amounts(table: HostTable, driver: Criteria, request: Request, rows: Ints) -> Iterator[tuple[int, Floats]]:
    """Each amount of the request that a filter limits, and how much of it is free on these rows."""
    filters, hosts = driver.chain_for(request).all_filters, Hosts(table, request, rows)
    for resource, limiting in AMOUNTS.items():
        amount: int = getattr(request, resource)
        if amount and any(type(filter_) is limiting for filter_ in filters):  # a class of a site's own may limit it otherwise
            yield amount, hosts.free_room(resource)
    for name, amount in request.resources.items():
        yield amount, hosts.free_resource(name)


def _largest_fitting(fits: Callable[[Ints, Ints], Mask], rows: Ints, low: Ints, high: Ints) -> Ints:
    """For each of ``rows`` the largest number from ``low`` to ``high`` that fits, by bisection. ``low`` fits."""
    low, high = low.copy(), high.copy()
    while (still := np.flatnonzero(low < high)).size:
        half = (low[still] + high[still] + 1) // 2
        passed = fits(rows[still], half)
        low[still] = np.where(passed, half, low[still])
        high[still] = np.where(passed, high[still], half - 1)
    return low


def _sum_by_place(numbers: Ints, is_in_cell: Mask, counts: Ints, takers: Ints, names: Sequence[str]) -> Iterator[PlaceRoom]:
    """The sums by number of a cell or zone, of those that have hosts, in the order of their names."""
    places = numbers[is_in_cell]
    hosts = np.bincount(places, minlength=len(names))
    servers = np.bincount(places, counts[is_in_cell], len(names)).astype(np.int64)
    taking = np.bincount(places, takers[is_in_cell], len(names)).astype(np.int64)
    for name, number in sorted((name, number) for number, name in enumerate(names) if hosts[number]):
        yield PlaceRoom(name=name, servers=int(servers[number]), hosts=int(taking[number]))


def _sum_by_aggregate(table: HostTable, counts: Ints, takers: Ints) -> Iterator[PlaceRoom]:
    combinations = table.aggregation[: table.size]
    servers = table.current_aggregates.totals_by_name(np.bincount(combinations, counts).astype(np.int64))
    hosts = table.current_aggregates.totals_by_name(np.bincount(combinations, takers).astype(np.int64))
    for name in sorted(servers):
        yield PlaceRoom(name=name, servers=servers[name], hosts=hosts[name])
