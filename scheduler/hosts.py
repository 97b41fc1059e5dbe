"""Some rows of the host table, as filters and weighers see them."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from objects.base import Object
from scheduler.arrays import Floats, Ints, Mask
from scheduler.request import Request
from scheduler.table import HostTable

Column = TypeVar("Column", Floats, Ints, Mask)


class HostState(Object, frozen=True, kw_only=True):
    """One host for a filter that looks at hosts one by one. vCPUs, MiB, GiB; free may be negative."""

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

    def __len__(self) -> int:
        return self.table.size if self.rows is None else self.rows.size

    def _pick(self, column: Column) -> Column:
        picked: Column = column[: self.table.size] if self.rows is None else column[self.rows]
        return picked

    @property
    def free_vcpus(self) -> Floats:
        free = self._pick(self.table.free_vcpus)
        return free if self._plain else free - self.more * self.request.vcpus

    @property
    def free_memory_mb(self) -> Floats:
        free = self._pick(self.table.free_memory_mb)
        return free if self._plain else free - self.more * self.request.memory_mb

    @property
    def free_disk_gb(self) -> Floats:
        free = self._pick(self.table.free_disk_gb)
        return free if self._plain else free - self.more * self.request.disk_gb

    @property
    def instances(self) -> Ints:
        count = self._pick(self.table.instances)
        return count if self._plain else count + self.more

    @property
    def eligible(self) -> Mask:
        return self._pick(self.table.eligible)

    @property
    def disabled(self) -> Mask:
        return self._pick(self.table.disabled)

    @property
    def cell_open(self) -> Mask:
        return self._pick(self.table.cell_open)

    @property
    def cell(self) -> Ints:
        return self._pick(self.table.cell)

    @property
    def zone(self) -> Ints:
        return self._pick(self.table.zone)

    @property
    def heard_at(self) -> Floats:
        return self._pick(self.table.heard_at)

    @property
    def failed_builds(self) -> Floats:
        return self._pick(self.table.failed_builds)

    @property
    def hypervisor_version(self) -> Ints:
        return self._pick(self.table.hypervisor_version)

    @property
    def members(self) -> Ints:
        """How many members of the request's group each host has; slots held for retries count unless they are yielding."""
        counts = self.request.members.counts(with_held=not self.request.yielding)
        column = np.zeros(self.table.size, dtype=np.int64)
        for host, count in counts.items():
            column[self.table.rows_of.get(host, [])] = count
        return self._pick(column) + self.more

    def named(self, hosts: tuple[str, ...], nodes: tuple[str, ...] = ()) -> Mask:
        """Which of them bear one of these host names (compared without case) and, if given, one of these node names (with case)."""
        column = np.zeros(self.table.size, dtype=np.bool_)
        if hosts:
            for host in hosts:
                column[self.table.rows_of.get(host.lower(), [])] = True
        else:
            column[:] = True
        if nodes:
            wanted = frozenset(nodes)
            for row in np.flatnonzero(column).tolist():
                column[row] = self.table.nodes[row] in wanted
        return self._pick(column)

    def state(self, position: int) -> HostState:
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
        )
