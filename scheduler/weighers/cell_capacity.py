"""CellCapacityWeigher: hosts of cells that have a larger share of their room free."""

from __future__ import annotations

import numpy as np

from scheduler.plan.request import Request
from scheduler.table.arrays import Floats
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher


class CellCapacityWeigher(Weigher):
    """The share of a cell's vCPUs or memory that is free, whichever is less, between 0 and 1; as it is when the batch is begun.

    It keeps cells of any size equally full, where each host by itself would look the same.
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
