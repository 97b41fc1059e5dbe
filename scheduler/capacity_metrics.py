"""Metrics of the cells' capacity and claims, as this scheduler sees them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scheduler.table.arrays import Ints
from scheduler.table.host_table import HostTable
from service import metrics

RESOURCES = {"vcpus": 1, "memory_bytes": 1024**2, "disk_bytes": 1024**3}
"""Names of resources in metrics, and the factors from the table's units (vCPUs, MiB, GiB)."""
_COLUMNS = {"vcpus": "vcpus", "memory_bytes": "memory_mb", "disk_bytes": "disk_gb"}


class CapacityMetrics:
    """Sums over the host table: a few milliseconds for 100,000 hosts, without a database query."""

    def __init__(self, table: HostTable) -> None:
        self._table = table
        metrics.CAPACITY.follow_reader(self._capacity_by_cell)
        metrics.CLAIMED.follow_reader(self._claimed_by_cell)
        metrics.HOSTS.follow_reader(self._count_hosts)

    def _capacity_by_cell(self) -> metrics.Values:
        return list(self._sum_resources("cap"))

    def _claimed_by_cell(self) -> metrics.Values:
        return [*self._sum_resources("claimed"), *self._count_instances()]

    def _count_hosts(self) -> Iterator[tuple[tuple[str, ...], float]]:
        with self._table.lock:
            for cell, rows in self._rows_by_cell():
                eligible = int(np.count_nonzero(self._table.eligible[rows]))
                yield (cell, "yes"), eligible
                yield (cell, "no"), rows.size - eligible

    def _sum_resources(self, kind: str) -> Iterator[tuple[tuple[str, ...], float]]:
        with self._table.lock:
            for cell, rows in self._rows_by_cell():
                for resource, unit in RESOURCES.items():
                    yield (cell, resource), float(getattr(self._table, f"{kind}_{_COLUMNS[resource]}")[rows].sum()) * unit

    def _count_instances(self) -> Iterator[tuple[tuple[str, ...], float]]:
        with self._table.lock:
            for cell, rows in self._rows_by_cell():
                yield (cell, "instances"), int(self._table.instances[rows].sum())

    def _rows_by_cell(self) -> Iterator[tuple[str, Ints]]:
        for number, cell in enumerate(self._table.cells):
            yield cell.name, self._table.of_cell(number)
