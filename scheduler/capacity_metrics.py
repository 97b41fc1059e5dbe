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


class Room:
    """Sums over the host table: a few milliseconds for 100,000 hosts, without a database query."""

    def __init__(self, table: HostTable) -> None:
        self._table = table
        metrics.CAPACITY.follow(self._capacity)
        metrics.CLAIMED.follow(self._claimed)
        metrics.HOSTS.follow(self._hosts)

    def _capacity(self) -> metrics.Values:
        return list(self._sums("cap"))

    def _claimed(self) -> metrics.Values:
        return [*self._sums("claimed"), *self._instances()]

    def _hosts(self) -> Iterator[tuple[tuple[str, ...], float]]:
        with self._table.lock:
            for cell, rows in self._rows():
                eligible = int(np.count_nonzero(self._table.eligible[rows]))
                yield (cell, "yes"), eligible
                yield (cell, "no"), rows.size - eligible

    def _sums(self, kind: str) -> Iterator[tuple[tuple[str, ...], float]]:
        with self._table.lock:
            for cell, rows in self._rows():
                for resource, unit in RESOURCES.items():
                    yield (cell, resource), float(getattr(self._table, f"{kind}_{_COLUMNS[resource]}")[rows].sum()) * unit

    def _instances(self) -> Iterator[tuple[tuple[str, ...], float]]:
        with self._table.lock:
            for cell, rows in self._rows():
                yield (cell, "instances"), int(self._table.instances[rows].sum())

    def _rows(self) -> Iterator[tuple[str, Ints]]:
        for number, cell in enumerate(self._table.cells):
            yield cell.name, self._table.of_cell(number)
