"""Custom resource classes of the host table: columns that are there once a host has any of the class."""

from __future__ import annotations

from collections.abc import ItemsView, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from objects import numa
from scheduler.table.arrays import Floats, Ints

Amounts = Mapping[str, int]
"""By the names of classes."""

NONE: Amounts = MappingProxyType({})
Rows = Ints | int | slice


class ResourceClass:
    """One class: how much of it each host has, what is claimed (a plan's own takings included), and what its agent counts.

    ``unaccounted`` is how much more that is than what is claimed: guests that nobody else knows of.
    """

    def __init__(self, room: int) -> None:
        self.cap, self.claimed, self.reported, self.unaccounted = (np.zeros(room) for _ in range(4))

    def free_amounts(self, rows: Ints | slice) -> Floats:
        """What is left there; negative on an over-full host."""
        free: Floats = self.cap[rows] - self.claimed[rows] - self.unaccounted[rows]
        return free

    def account_later(self, row: int) -> bool:
        """The same as far as the agent counts less than before; whether it counts more, which is to be seen later."""
        beyond = max(self.reported.item(row) - self.claimed.item(row), 0.0)
        before = self.unaccounted.item(row)
        self.unaccounted[row] = min(beyond, before)
        return beyond > before

    def account_reports(self, rows: Rows) -> None:
        """Compare the agents' counts with the claims, as they are now."""
        self.unaccounted[rows] = np.maximum(self.reported[rows] - self.claimed[rows], 0.0)

    def grow_to(self, size: int) -> None:
        """Make room for so many rows."""
        if size <= self.cap.size:
            return
        more = np.zeros(max(size, 2 * self.cap.size) - self.cap.size)
        for name in ("cap", "claimed", "reported", "unaccounted"):
            setattr(self, name, np.concatenate((getattr(self, name), more)))


class RoomColumn:
    """What is free on a node of each host; -inf: the host has no such node; inf: its nodes are not counted."""

    def __init__(self, size: int = 0) -> None:
        self.free: Floats = np.full(size, np.inf)

    def grow_to(self, size: int) -> None:
        """Make room for so many rows."""
        if size > self.free.size:
            self.free = np.concatenate((self.free, np.full(max(size, 2 * self.free.size) - self.free.size, np.inf)))

    def room_of(self, rows: Ints | slice, size: int) -> Floats:
        """Of these rows of a table of ``size`` rows."""
        if size > self.free.size:
            self.grow_to(size)
        picked: Floats = self.free[rows]
        return picked


class NodeAmount(ResourceClass):
    """The vCPUs or the memory of the NUMA nodes of one number."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.room = RoomColumn(size)

    def grow_to(self, size: int) -> None:
        super().grow_to(size)
        self.room.grow_to(self.cap.size)


class NodeClasses(NamedTuple):
    """The classes of the NUMA nodes of one number."""

    vcpus: NodeAmount
    memory_mb: NodeAmount


class LeastRoom(NamedTuple):
    """What is free on the nodes with the least of each host."""

    vcpus: RoomColumn
    memory_mb: RoomColumn


class Classes(dict[str, ResourceClass]):
    """All classes that any host has had, by name. Used by the table that they belong to, under its lock.

    ``numa``: those of the NUMA nodes of hosts, by the numbers of the nodes; empty if no host has any. ``least``: of all nodes of
    each host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.numa: tuple[NodeClasses, ...] = ()
        self.least = LeastRoom(RoomColumn(), RoomColumn())
        self._rows = 0  # all classes have room for so many

    def report_used(self, row: int, used: Amounts, *, first: bool = True) -> bool:
        """What the agent of the host in this row counts as used.

        After its ``first`` report, whether that is more than is accounted for: it counts when the rows are settled.
        """
        more = False
        for name, resource in self._classes_of(row, used):
            resource.reported[row] = used.get(name, 0)
            if first:
                resource.account_reports(row)
            else:
                more |= resource.account_later(row)
        return more

    def enter_ledger(self, row: int, cap: Amounts, claimed: Amounts, *, first: bool) -> None:
        """What the ledger says of the host in this row. ``first``: it says so for the first time."""
        for name, resource in self._classes_of(row, cap, claimed):
            resource.cap[row], resource.claimed[row] = cap.get(name, 0), claimed.get(name, 0)
            if first:
                resource.account_reports(row)

    def forget_row(self, row: int) -> None:
        """The row is no host's any more."""
        self.enter_ledger(row, NONE, NONE, first=False)
        self.report_used(row, NONE)
        if self.numa:
            self.set_used(row, 0.0, 0.0)

    def settle_rows(self, rows: Ints) -> Ints:
        """Account for these hosts anew; returns those for which that made a difference."""
        moved = np.zeros(rows.size, np.bool_)
        for resource in self.values():
            resource.grow_to(int(rows.max(initial=-1)) + 1)
            before = resource.unaccounted[rows]
            resource.account_reports(rows)
            moved |= resource.unaccounted[rows] != before
        return rows[moved]

    def take_amounts(self, row: int, amounts: Amounts) -> None:
        for name, amount in amounts.items():
            claimed = self._with_row(name, row).claimed
            claimed[row] = claimed.item(row) + amount

    def give_back(self, row: int, amounts: Amounts) -> None:
        """Exactly what was taken: these are whole numbers."""
        for name, amount in amounts.items():
            claimed = self._with_row(name, row).claimed
            claimed[row] = claimed.item(row) - amount

    def claimed_on(self, row: int) -> dict[str, int]:
        """What is claimed on the host in this row, of the classes of which anything is."""
        return {name: int(resource.claimed.item(row)) for name, resource in self._classes_of(row) if resource.claimed.item(row)}

    def free_on(self, row: int) -> dict[str, float]:
        """What is free on the host in this row, of the classes that it has."""
        return {
            name: float(resource.free_amounts(slice(row, row + 1))[0])
            for name, resource in self._classes_of(row)
            if resource.cap[row]
        }

    def _classes_of(self, row: int, *named: Amounts) -> ItemsView[str, ResourceClass]:
        """Every class, those included that are named for the first time, with room for this row."""
        for names in named:
            if not names.keys() <= self.keys():
                for name in names:
                    if name not in self:
                        self._add_class(name, row + 1)
        if row >= self._rows and self:
            for resource in self.values():
                resource.grow_to(row + 1)
            self._rows = min(resource.cap.size for resource in self.values())
            for least in self.least:
                least.grow_to(self._rows)
        return self.items()

    def _with_row(self, name: str, row: int) -> ResourceClass:
        """The class, with room for this row."""
        if name not in self:
            self._add_class(name, row + 1)
        resource = self[name]
        if resource.cap.size <= row:
            resource.grow_to(row + 1)
        return resource

    def _add_class(self, name: str, room: int) -> None:
        node = numa.node_of_class(name)
        self._rows = 0
        if node is None:
            self[name] = ResourceClass(room)
        elif node < numa.HOST_NODES_LIMIT:
            for number in range(len(self.numa), node + 1):
                node_classes = NodeClasses(NodeAmount(room), NodeAmount(room))
                if self.numa:
                    counted = self.numa[0].vcpus.room.free < np.inf
                    for room_column in (node_classes.vcpus.room, node_classes.memory_mb.room, *self.least):
                        room_column.grow_to(counted.size)
                        room_column.free[: counted.size][counted] = -np.inf
                self |= zip(numa.class_names(number), node_classes, strict=True)
                self.numa = (*self.numa, node_classes)

    # -- NUMA nodes --------------------------------------------------------------------------------------------------------

    def set_used(self, row: int, vcpus: float, memory_mb: float) -> None:
        """How much is used of the host in this row, by servers on its nodes and by others."""
        nodes = self.numa_with_row(row)
        absent = np.inf
        others_vcpus, others_memory = vcpus, memory_mb
        free_by_node: list[tuple[float, float] | None] = []
        for cpus, memory in nodes:
            cap_vcpus, cap_memory = cpus.cap.item(row), memory.cap.item(row)
            own_vcpus, own_memory = cpus.claimed.item(row), memory.claimed.item(row)
            others_vcpus -= own_vcpus
            others_memory -= own_memory
            if cap_vcpus or cap_memory:
                absent = -np.inf
                free_by_node.append((cap_vcpus - own_vcpus, cap_memory - own_memory))
            else:
                free_by_node.append(None)
        others_vcpus, others_memory = max(others_vcpus, 0.0), max(others_memory, 0.0)
        least_vcpus = least_memory = np.inf
        for (cpus, memory), room in zip(nodes, free_by_node, strict=True):
            free_vcpus, free_memory = (absent, absent) if room is None else (room[0] - others_vcpus, room[1] - others_memory)
            cpus.room.free[row], memory.room.free[row] = free_vcpus, free_memory
            least_vcpus = free_vcpus if free_vcpus < least_vcpus else least_vcpus
            least_memory = free_memory if free_memory < least_memory else least_memory
        self.least.vcpus.free[row], self.least.memory_mb.free[row] = least_vcpus, least_memory

    def set_used_of(self, rows: Ints, vcpus: Floats, memory_mb: Floats) -> None:
        """The same of several rows."""
        nodes = self.numa_with_row(int(rows.max(initial=-1)))
        has_node = [(node.vcpus.cap[rows] != 0) | (node.memory_mb.cap[rows] != 0) for node in nodes]
        counted = np.any(has_node, axis=0)
        cpus, memory = [node.vcpus for node in nodes], [node.memory_mb for node in nodes]
        for used, amounts, least in ((vcpus, cpus, self.least.vcpus), (memory_mb, memory, self.least.memory_mb)):
            others = np.maximum(used - np.sum([node_amount.claimed[rows] for node_amount in amounts], axis=0), 0.0)
            least.free[rows] = np.inf
            for has, node_amount in zip(has_node, amounts, strict=True):
                free = node_amount.cap[rows] - node_amount.claimed[rows] - others
                node_amount.room.free[rows] = node_free = np.where(counted, np.where(has, free, -np.inf), np.inf)
                least.free[rows] = np.minimum(least.free[rows], node_free)

    def numa_with_row(self, row: int) -> tuple[NodeClasses, ...]:
        """The nodes, with room for this row."""
        if row >= self._rows:
            self._classes_of(row)
        return self.numa
