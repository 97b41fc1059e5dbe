"""What is claimed of the hosts: by the ledger, and by plans for the time being, who give back exactly what they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

import numpy as np

from objects.inventory import Inventory
from scheduler.table.arrays import Ints
from scheduler.table.columns import Columns
from scheduler.table.numa import NodePart, NodeRooms, choose_nodes
from scheduler.table.resource_classes import NONE, Classes


class TentativeClaims(Columns):
    """Columns of which claims and plans take. What a plan took last is given back first."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = Classes()
        self._moved: set[int] = set()  # rows of which the room on NUMA nodes is to be computed anew
        self._taken: list[tuple[int, tuple[float, float, float], Mapping[str, int]]] = []

    def enter_inventory(self, row: int, inventory: Inventory) -> None:
        """What the ledger says of the host. Name by name: this is done for every claim, and a loop would take twice as long."""
        if inventory.cap_vcpus != self.cap_vcpus.item(row) or inventory.cap_memory_mb != self.cap_memory_mb.item(row):
            self._set_capacity(row, inventory.cap_vcpus, inventory.cap_memory_mb)
        cap, used = inventory.cap_vcpus, inventory.used_vcpus
        self.claimed_vcpus[row] = used
        vcpus = cap - used - self.unaccounted_vcpus.item(row)
        cap, used = inventory.cap_memory_mb, inventory.used_memory_mb
        self.claimed_memory_mb[row] = used
        memory_mb = cap - used - self.unaccounted_memory_mb.item(row)
        cap, used = inventory.cap_disk_gb, inventory.used_disk_gb
        self.cap_disk_gb[row], self.claimed_disk_gb[row] = cap, used
        disk_gb = cap - used - self.unaccounted_disk_gb.item(row)
        if self.classes or inventory.cap_resources or inventory.used_resources:
            self.classes.enter_ledger(row, inventory.cap_resources, inventory.used_resources, first=self.generation.item(row) < 0)
        self.generation[row], self.instances[row] = inventory.generation, inventory.instances
        self.building[row] = inventory.instances - self.guests.item(row)
        self.set_free(row, vcpus, memory_mb, disk_gb)

    def take_tentatively(self) -> Tentative:
        """Whatever ``take_room`` took inside is given back at the end, exactly."""
        return Tentative(self)

    @property
    def undo_mark(self) -> int:
        """A point to ``give_back`` to."""
        return len(self._taken)

    def take_room(self, row: int, vcpus: int, memory_mb: int, disk_gb: int, resources: Mapping[str, int] = NONE) -> None:
        """One more instance on the row, as far as this plan is concerned. ``resources``: amounts by custom resource class."""
        free = self.free_vcpus.item(row), self.free_memory_mb.item(row), self.free_disk_gb.item(row)
        self._taken.append((row, free, resources))
        if resources:
            self.classes.take_amounts(row, resources)
        self.instances[row] += 1
        self.building[row] += 1
        self.set_free(row, free[0] - vcpus, free[1] - memory_mb, free[2] - disk_gb)

    def set_free(self, row: int, vcpus: float, memory_mb: float, disk_gb: float) -> None:
        """What is free on one host now."""
        self.free_vcpus[row], self.free_memory_mb[row], self.free_disk_gb[row] = vcpus, memory_mb, disk_gb
        self.note_changed(row)
        if self.classes.numa:
            self._moved.add(row)

    def lend_row(self, row: int, free: tuple[float, float, float], instances: int, building: int) -> None:
        """Show this of the row for a while. Before the lock is released, the same call shows again what was there.

        So this is no change, and surveys that are kept must not be asked meanwhile.
        """
        self.free_vcpus[row], self.free_memory_mb[row], self.free_disk_gb[row] = free
        self.instances[row], self.building[row] = instances, building
        if self.classes.numa:
            self._moved.add(row)

    def _recount_free(self, rows: int | Ints) -> None:
        super()._recount_free(rows)
        if self.classes.numa:
            recounted = np.atleast_1d(np.asarray(rows, np.int64))
            used = (
                self.cap_vcpus[recounted] - self.free_vcpus[recounted],
                self.cap_memory_mb[recounted] - self.free_memory_mb[recounted],
            )
            self.classes.set_used_of(recounted, *used)

    def node_rooms(self, rows: Ints | slice) -> NodeRooms | None:
        """What is free on the NUMA nodes of these hosts; None if no host's nodes are counted."""
        if self._moved:
            self._update_rooms()
        return NodeRooms(self.classes, rows, self.size) if self.classes.numa else None

    def free_on_nodes(self, rows: Sequence[int]) -> list[tuple[list[float], list[float]]]:
        """The same of a few hosts: vCPUs and memory of each, for each number of a node."""
        if self._moved:
            self._update_rooms()
        nodes = self.classes.numa_with_row(max(rows, default=-1))
        return [(list(map(cpus.room.free.item, rows)), list(map(memory.room.free.item, rows))) for cpus, memory in nodes]

    def nodes_for(self, row: int, part: NodePart) -> tuple[int, ...] | None:
        """The NUMA nodes for a server on the host; empty if they are not counted there, None if it does not fit on them."""
        if not self.classes.numa:
            return ()
        if row in self._moved:
            self._update_rooms()
        return choose_nodes(self.classes, row, part)

    def _update_rooms(self) -> None:
        for row in self._moved:
            used = (
                self.cap_vcpus.item(row) - self.free_vcpus.item(row),
                self.cap_memory_mb.item(row) - self.free_memory_mb.item(row),
            )
            self.classes.set_used(row, *used)
        self._moved.clear()

    def give_back(self, mark: int) -> None:
        """All that was taken since then."""
        while len(self._taken) > mark:
            row, free, resources = self._taken.pop()
            if resources:
                self.classes.give_back(row, resources)
            self.instances[row] -= 1
            self.building[row] -= 1
            self.set_free(row, *free)


class Tentative:
    """The time of one plan. Entered once for every decision, by which a generator would be felt."""

    def __init__(self, table: TentativeClaims) -> None:
        self._table = table
        self._mark = table.undo_mark

    def __enter__(self) -> None:
        self._mark = self._table.undo_mark

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._table.give_back(self._mark)
