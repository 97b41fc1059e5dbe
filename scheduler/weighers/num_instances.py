"""NumInstancesWeigher: counts the instances claimed on a host. A negative multiplier prefers fewer."""

from __future__ import annotations

import numpy as np

from scheduler.plan.request import Request
from scheduler.table.arrays import Floats
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher


class NumInstancesWeigher(Weigher):
    option = "num_instances_weight_multiplier"

    @property
    def multiplier(self) -> float:
        return self.settings.num_instances_weight_multiplier

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        return hosts.instances.astype(np.float64)
