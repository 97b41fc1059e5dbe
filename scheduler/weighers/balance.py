"""BalanceWeigher: prefers hosts whose vCPUs, memory and disk are used up evenly."""

from __future__ import annotations

import numpy as np

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Floats
from scheduler.framework.hosts import Hosts
from scheduler.framework.weigher import Weigher


class BalanceWeigher(Weigher):
    """The difference between the largest and smallest free share of vCPUs, memory and disk, with the server placed.

    It is between 0 and 1; less is better. A host that runs out of one resource cannot use what is left of the others. A resource
    that a host does not have does not count.
    """

    option = "balance_weight_multiplier"
    reads = ("amounts",)

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        amounts = {"vcpus": request.vcpus, "memory_mb": request.memory_mb, "disk_gb": request.disk_gb}
        highest, lowest = np.zeros(len(hosts)), np.ones(len(hosts))
        for resource, amount in amounts.items():
            capacity = hosts.capacity_of(resource)
            share = np.clip((hosts.free_room(resource) - amount) / np.maximum(capacity, 1e-9), 0.0, 1.0)
            highest = np.maximum(highest, np.where(capacity > 0, share, 0.0))
            lowest = np.minimum(lowest, np.where(capacity > 0, share, 1.0))
        apart: Floats = np.maximum(highest - lowest, 0.0)
        return -apart
