"""CellSpreadWeigher: prefers hosts of cells with fewer servers of the batch and of its group."""

from __future__ import annotations

import numpy as np

from scheduler.plan.request import Request
from scheduler.table.arrays import Floats
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher


class CellSpreadWeigher(Weigher):
    """Limits how many servers of a batch or group fail with one cell. Does not apply to a single server without a group."""

    cell_wide = True
    option = "cell_spread_weight_multiplier"

    @property
    def multiplier(self) -> float:
        return self.settings.cell_spread_weight_multiplier

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        if request.group is None and request.spec.num_instances < 2:
            return None
        return -hosts.cell_members[hosts.cell].astype(np.float64)
