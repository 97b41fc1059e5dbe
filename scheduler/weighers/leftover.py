"""LeftoverWeigher: prefers hosts that keep free room of a useful shape."""

from __future__ import annotations

import numpy as np

from scheduler.plan.request import Request
from scheduler.table.arrays import Floats
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher

TIGHTNESS = 0.02
"""How much fuller hosts are preferred among those with room of a similar shape. It keeps large holes open."""


class LeftoverWeigher(Weigher):
    """How near the free shares of vCPUs and memory, with the server placed, come to ``[scheduler] leftover_shape``.

    The weight is ``-abs(vcpus - shape * memory) - TIGHTNESS * (vcpus + memory)``, of free shares. A host that keeps vCPUs without
    memory, or memory without vCPUs, takes no server with them. The shape is what the servers that come can use best: 1 for
    servers that take equal shares, more if they take more of the vCPUs than of the memory.
    """

    option = "leftover_weight_multiplier"
    reads = ("amounts",)

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        # in place: a pass of its own for each operation, over the arrays of two resources
        vcpus = hosts.room("vcpus") - request.vcpus
        vcpus /= np.maximum(hosts.capacity("vcpus"), 1e-9)
        memory = hosts.room("memory_mb") - request.memory_mb
        memory /= np.maximum(hosts.capacity("memory_mb"), 1e-9)
        apart = memory * self.settings.leftover_shape
        apart -= vcpus
        np.abs(apart, out=apart)
        vcpus += memory
        vcpus *= -TIGHTNESS
        vcpus -= apart
        return vcpus
