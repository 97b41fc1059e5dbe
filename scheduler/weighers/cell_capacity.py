"""CellCapacityWeigher: prefers hosts of cells with a larger free share of their capacity."""

from __future__ import annotations

import numpy as np

from scheduler.plan.request import Request
from scheduler.table.arrays import Floats
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher


class CellCapacityWeigher(Weigher):
    """The smaller of the free shares of a cell's vCPUs and memory, between 0 and 1, computed once per batch.

    It keeps cells of different sizes equally full, even where their hosts look the same.
    """

    least = 0.0
    option = "cell_capacity_weight_multiplier"

    @property
    def multiplier(self) -> float:
        return self.settings.cell_capacity_weight_multiplier

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        shares = request.remembered(self.name, lambda: np.minimum(hosts.cell_shares("vcpus"), hosts.cell_shares("memory_mb")))
        column: Floats = shares[hosts.cell]
        return column
