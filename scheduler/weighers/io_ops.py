"""IoOpsWeigher: counts the builds under way on a host. The default multiplier is negative and prefers fewer."""

from __future__ import annotations

import numpy as np

from scheduler.plan.request import Request
from scheduler.table.arrays import Floats
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher


class IoOpsWeigher(Weigher):
    least = 0.0
    option = "io_ops_weight_multiplier"

    @property
    def multiplier(self) -> float:
        return self.settings.io_ops_weight_multiplier

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        return hosts.io_ops.astype(np.float64)
