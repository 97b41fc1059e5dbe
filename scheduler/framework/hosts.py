"""Some rows of the host table, as filters and weighers see them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from objects.base import Object
from scheduler.framework.batch_request import Request
from scheduler.framework.members import FEW_ROWS
from scheduler.table.address import Network, is_mapped, network_span
from scheduler.table.aggregation import RATIOS, Aggregates
from scheduler.table.arrays import Counts, Floats, Ints, Mask
from scheduler.table.columns import LEAST_CAPACITY
from scheduler.table.host_table import HostTable
from scheduler.table.numa import NodePart, even_room, most_servers, take_mask

Kind = TypeVar("Kind", bound=np.generic)

_HALF = (1 << 64) - 1
SPARSE_ROWS = 16
"""Members are searched for rows, instead of counted for all rows, where more than so many times as many are in the table, or rows
are few."""


class HostState(Object, frozen=True, kw_only=True):
    """One host for a filter that looks at hosts one by one. vCPUs, MiB, GiB; free may be negative.

    ``attributes`` are what the host's driver reports, and hypervisor_type and hypervisor_version; ``metadata`` is what its
    aggregates say, by key, one value from each aggregate that has the key; ``free_resources`` are the custom resource classes it
    has any of.
    """

    host: str
    node: str
    cell: str
    availability_zone: str
    free_vcpus: float
    free_memory_mb: float
    free_disk_gb: float
    total_vcpus: float
    total_memory_mb: float
    total_disk_gb: float
    instances: int
    failed_builds: float
    attributes: dict[str, Any]
    metadata: dict[str, tuple[str, ...]]
    free_resources: dict[str, float]


class Hosts:
    """Columns of equal length over ``rows`` (None: all rows of the table).

    ``more`` (one number per row, or one for all) shows the hosts as they would be with so many more instances of the request, which
    is how a batch is planned without asking anew for every instance.
    """

    def __init__(self, table: HostTable, request: Request, rows: Ints | None = None, more: Ints | int = 0) -> None:
        self.table = table
        self.request = request
        self.rows = rows
        self.more = more
        self._plain = isinstance(more, int) and more == 0
        self._index: Ints | slice = slice(table.size) if rows is None else rows

    @classmethod
    def rows_between(cls, table: HostTable, request: Request, start: int, end: int) -> Hosts:
        """The rows from ``start`` to before ``end``, whose columns are not copied."""
        hosts = cls(table, request, np.arange(start, end))
        hosts._index = slice(start, end)
        return hosts

    def __len__(self) -> int:
        return self.table.size if self.rows is None else self.rows.size

    def _pick_rows(self, column: npt.NDArray[Kind]) -> npt.NDArray[Kind]:
        picked: npt.NDArray[Kind] = column[self._index]
        return picked

    @property
    def free_vcpus(self) -> Floats:
        free: Floats = self.table.free_vcpus[self._index]
        return free if self._plain else free - self.more * self.request.vcpus

    @property
    def free_memory_mb(self) -> Floats:
        free: Floats = self.table.free_memory_mb[self._index]
        return free if self._plain else free - self.more * self.request.memory_mb

    @property
    def free_disk_gb(self) -> Floats:
        free: Floats = self.table.free_disk_gb[self._index]
        return free if self._plain else free - self.more * self.request.disk_gb

    def free_resource(self, name: str) -> Floats:
        """What is free of a custom resource class."""
        known = self.table.classes.get(name)
        if known is None:
            return np.zeros(len(self))
        known.grow_to(self.table.size)
        free = known.free_amounts(self._index)
        return free if self._plain else free - self.more * self.request.resources.get(name, 0)

    def take_on_nodes(self, part: NodePart) -> Mask | None:
        """Which of them have NUMA nodes with room for a server of the request; None if no host's nodes are counted."""
        rooms = self.table.node_rooms(self._index)
        return None if rooms is None else take_mask(rooms, part, self.more)

    def most_on_nodes(self, part: NodePart) -> Floats | None:
        """At most how many servers of the request their NUMA nodes take, not rounded; None as above.

        Those of ``more`` are included.
        """
        rooms = self.table.node_rooms(self._index)
        return None if rooms is None else most_servers(rooms, part)

    def even_room(self, resource: str) -> Floats | None:
        """Free vcpus or memory_mb if every NUMA node of a host had as much as its fullest one: what servers of all nodes can use.

        inf where nodes are not counted; None if no host's are. Instances of ``more`` are taken off as they are off the host.
        """
        rooms = self.table.node_rooms(self._index)
        if rooms is None:
            return None
        even = even_room([getattr(node, resource) for node in rooms.rooms_by_node()])
        return even if self._plain else even - self.more * getattr(self.request, resource)

    def offers_resource(self, name: str) -> Mask:
        """Which of them have any of a custom resource class, and may be chosen at all."""
        known = self.table.classes.get(name)
        if known is None:
            return np.zeros(len(self), dtype=np.bool_)
        known.grow_to(self.table.size)
        offered: Mask = self._pick_rows(known.cap) > 0
        return offered & self.is_eligible

    @property
    def instance_counts(self) -> Counts:
        count: Counts = self.table.instances[self._index]
        return count if self._plain else (count + self.more).astype(np.int32)

    def capacity_of(self, resource: str) -> Floats:
        """``cap`` of vcpus, memory_mb or disk_gb, made smaller where an aggregate has a lower allocation ratio than the host."""
        capacity: Floats = self._pick_rows(getattr(self.table, f"cap_{resource}"))
        lowered = self.least_of_aggregates(RATIOS[resource], np.inf)
        if isinstance(lowered, float):
            return capacity
        own_ratio = np.maximum(self._pick_rows(getattr(self.table, f"ratio_{resource}")), 1e-9)
        smaller: Floats = capacity * np.minimum(np.maximum(lowered, 0.0) / own_ratio, 1.0)
        return smaller

    def inverse_capacity(self, resource: str) -> Floats:
        """1 / ``capacity_of`` of vcpus or memory_mb. Not to be written to."""
        if self.table.current_aggregates.lowering:
            return 1.0 / np.maximum(self.capacity_of(resource), LEAST_CAPACITY)
        return self._pick_rows(self.table.inverse_capacity(resource))

    def free_room(self, resource: str) -> Floats:
        """Free vcpus, memory_mb or disk_gb, with the lower allocation ratios of aggregates applied."""
        free: Floats = getattr(self.table, f"free_{resource}")[self._index]
        if not self._plain:
            free = free - self.more * getattr(self.request, resource)
        if not self.table.current_aggregates.lowering:
            return free
        beyond: Floats = self._pick_rows(getattr(self.table, f"cap_{resource}")) - self.capacity_of(resource)
        return free - beyond

    def cell_shares(self, resource: str) -> Floats:
        """The share of vcpus or memory_mb that is free in each cell, by its number; 0 where there is nothing."""
        table = self.table
        eligible_rows = np.flatnonzero(table.eligible[: table.size])
        cells, count = table.cell[eligible_rows], len(table.cells)
        free = np.bincount(cells, np.maximum(getattr(table, f"free_{resource}")[eligible_rows], 0.0), count)
        share: Floats = free / np.maximum(np.bincount(cells, getattr(table, f"cap_{resource}")[eligible_rows], count), 1e-9)
        return share

    @property
    def cell_members(self) -> Ints:
        """How many servers of the batch and of its group are in the cell of each."""
        before = self.request.remember_result("members before the batch, by cell", self._cell_members_before)
        placed = self.request.in_cells
        if len(self) == 1:
            cell = int(self.cell_numbers[0])
            return np.array([before[cell] + placed.get(cell, 0)], dtype=np.int64)
        counts = before.copy()
        for cell, count in placed.items():
            counts[cell] += count
        member_counts: Ints = counts[self.cell_numbers]
        return member_counts

    def _cell_members_before(self) -> Ints:
        counts = np.zeros(len(self.table.cells) + 1, dtype=np.int64)  # the last, -1: hosts that no cell reports
        if self.request.server_group is None:
            return counts
        for host, count in self.request.members.counts_by_host(with_held=False).items():
            for cell in {int(self.table.cell[row]) for row in self.table.rows_of.get(host, ())}:
                counts[cell] += count
        for cell, count in self.request.in_cells.items():
            counts[cell] -= count  # these are members, too
        counts[-1] = 0
        return counts

    def physical_amount(self, resource: str) -> Floats:
        """What there is of vcpus, memory_mb or disk_gb without over-allocation, less what is reserved."""
        own_ratio = self._pick_rows(getattr(self.table, f"ratio_{resource}"))
        amount: Floats = self._pick_rows(getattr(self.table, f"cap_{resource}")) / np.maximum(own_ratio, 1e-9)
        return amount

    def least_of_aggregates(self, key: str, default: float) -> Floats | float:
        """The smallest number that the aggregates of each have for ``key``; ``default`` alone where no aggregate knows the key."""
        aggregates = self.table.current_aggregates
        return (
            aggregates.least_by_combination(key, default)[self._pick_rows(self.table.aggregation)]
            if key in aggregates.keys
            else default
        )

    def in_passing_aggregates(self, key: Hashable, answer: Callable[[Aggregates], Mask]) -> Mask:
        """Which of them are in combinations of aggregates that pass; ``answer`` returns one element for each combination.

        Answers are cached by ``key`` until the aggregates change: it must name everything that they depend on.
        """
        aggregates = self.table.current_aggregates
        passed: Mask = aggregates.cached_mask(key, lambda: answer(aggregates))[self._pick_rows(self.table.aggregation)]
        return passed

    @property
    def guest_counts(self) -> Counts:
        return self._pick_rows(self.table.guests)

    @property
    def io_ops(self) -> Counts:
        """Builds under way: claims of which the agent does not run the guest yet."""
        under_way: Counts = np.maximum(self.build_counts, 0)
        return under_way

    @property
    def build_counts(self) -> Counts:
        """Claims less guests, which is negative where the agent runs guests that were not claimed."""
        count: Counts = self.table.building[self._index]
        return count if self._plain else (count + self.more).astype(np.int32)

    def attribute_passes(self, attribute: str, key: object, test: Callable[[Any], bool]) -> Mask:
        """Which of them have a value of ``attribute`` that passes ``test``; hosts without it are judged by None.

        Each distinct value is tested once per request; ``key`` tells the tests of a request apart.
        """
        facet = self.table.facets.get(attribute)
        if facet is None:
            return np.full(len(self), test(None), dtype=np.bool_)
        answers = self.request.remember_result(
            (attribute, key), lambda: np.array([test(value) for value in facet.values], dtype=np.bool_)
        )
        passed: Mask = answers[self._pick_rows(facet.codes_of_rows(self.table.size))]
        return passed

    def attribute_numbers(self, attribute: str) -> Floats:
        """The attribute as a number; not-a-number for hosts that tell none."""
        facet = self.table.facets.get(attribute)
        if facet is None:
            return np.full(len(self), np.nan)
        numbers = np.array([_number_or_nan(value) for value in facet.values])
        values: Floats = numbers[self._pick_rows(facet.codes_of_rows(self.table.size))]
        return values

    def in_network(self, network: Network) -> Mask:
        """Which of them have an address of the network."""
        first, mask = network_span(network)
        high, low = self._pick_rows(self.table.address_high), self._pick_rows(self.table.address_low)
        is_inside: Mask = ((high | low) != 0) & (is_mapped(high, low) == (network.version == 4))
        for column, shift in ((high, 64), (low, 0)):
            is_inside &= (column & np.uint64((mask >> shift) & _HALF)) == np.uint64((first >> shift) & _HALF)
        return is_inside

    @property
    def is_eligible(self) -> Mask:
        return self._pick_rows(self.table.eligible)

    @property
    def is_disabled(self) -> Mask:
        return self._pick_rows(self.table.disabled)

    def are_up(self, since: float) -> Mask:
        """Which of them are enabled, in enabled cells, and were heard of since then."""
        return self._pick_rows(self.table.hosts_up(since))

    @property
    def cell_open(self) -> Mask:
        return self._pick_rows(self.table.cell_open)

    @property
    def cell_numbers(self) -> Ints:
        return self._pick_rows(self.table.cell)

    def of_cell(self, cell: int) -> Ints:
        """The positions of those that the cell of this number reports, in order."""
        return self.table.of_cell(cell) if self.rows is None else np.flatnonzero(self.cell_numbers == cell)

    @property
    def zone_numbers(self) -> Ints:
        return self._pick_rows(self.table.zone)

    @property
    def rack_numbers(self) -> Ints:
        """The number of the rack of each; -1: it is in none, or in several."""
        return self.table.racks_of(self._index)

    def in_racks_but(self, closed: Collection[int]) -> Mask:
        """Which of them are in a rack that is not one of these, by number."""
        if self.rows is None:
            passed = np.ones(self.table.size, dtype=np.bool_)
            passed[self.table.by_rack.rows_of((-1, *closed))] = False
            return passed
        is_open = np.ones(len(self.table.current_aggregates.rack_layout.names) + 1, dtype=np.bool_)
        is_open[[-1, *closed]] = False
        is_allowed: Mask = is_open[self.rack_numbers]
        return is_allowed

    def by_rack(self, counts: Mapping[int, int]) -> Ints:
        """The count of the rack of each, by number; 0 for those that are in none."""
        every = np.zeros(len(self.table.current_aggregates.rack_layout.names) + 1, np.int64)
        every[list(counts)] = list(counts.values())
        amounts: Ints = every[self.rack_numbers]
        return amounts

    @property
    def with_more(self) -> bool:
        """Whether they are shown with more instances than they have, or with fewer."""
        return not self._plain

    @property
    def heard_at(self) -> Floats:
        return self._pick_rows(self.table.heard_at)

    @property
    def failed_builds(self) -> Floats:
        return self._pick_rows(self.table.failed_builds)

    @property
    def hypervisor_version(self) -> Ints:
        return self._pick_rows(self.table.hypervisor_version)

    @property
    def member_counts(self) -> Ints:
        """How many members of the request's group each host has; slots held for retries count unless they are yielding.

        Not to be written to.
        """
        with_held, members = not self.request.yielding, self.request.members
        table = self.table
        if self.rows is not None and (self.rows.size <= FEW_ROWS or self.rows.size * SPARSE_ROWS <= table.size):
            return members.of_rows(table.named_rows, self.rows, with_held=with_held) + self.more
        column = self._pick_rows(members.by_row(table.named_rows, table.size, with_held=with_held))
        return column if self._plain else column + self.more

    def bear_name(self, hosts: tuple[str, ...], nodes: tuple[str, ...] = ()) -> Mask:
        """Which of them bear one of these host names (compared without case) and, if given, one of these node names (with case)."""
        column = np.zeros(self.table.size, dtype=np.bool_)
        if hosts:
            for host in hosts:
                column[list(self.table.rows_of.get(host.lower(), ()))] = True
        else:
            column[:] = True
        if nodes:
            node_names = frozenset(nodes)
            for row in np.flatnonzero(column).tolist():
                column[row] = self.table.nodes[row] in node_names
        return self._pick_rows(column)

    def state_at(self, position: int) -> HostState:
        """The host at ``position`` among these, as one record."""
        table = self.table
        row = position if self.rows is None else int(self.rows[position])
        more = self.more if isinstance(self.more, int) else int(self.more[position])
        return HostState(
            host=table.hosts[row],
            node=table.nodes[row],
            cell=table.cells[int(table.cell[row])].name,
            availability_zone=table.zones[int(table.zone[row])],
            free_vcpus=float(table.free_vcpus[row]) - more * self.request.vcpus,
            free_memory_mb=float(table.free_memory_mb[row]) - more * self.request.memory_mb,
            free_disk_gb=float(table.free_disk_gb[row]) - more * self.request.disk_gb,
            total_vcpus=float(table.cap_vcpus[row]),
            total_memory_mb=float(table.cap_memory_mb[row]),
            total_disk_gb=float(table.cap_disk_gb[row]),
            instances=int(table.instances[row]) + more,
            failed_builds=float(table.failed_builds[row]),
            attributes=table.facets.attributes_at(row),
            metadata=table.current_aggregates.metadata_of(int(table.aggregation[row])),
            free_resources={
                name: free - more * self.request.resources.get(name, 0) for name, free in table.classes.free_on(row).items()
            },
        )


def _number_or_nan(value: object) -> float:
    """Not-a-number for what is none, and for one that no float can hold."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):
            return float(value)
    return np.nan
