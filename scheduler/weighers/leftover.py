"""LeftoverWeigher: prefers hosts that keep free room of a useful shape."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from scheduler.plan.request import Request
from scheduler.settings import SchedulerSettings
from scheduler.table.arrays import Floats
from scheduler.table.host_table import HostTable
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher

TIGHTNESS = 0.02
"""How much fuller hosts are preferred among those with room of a similar shape. It keeps large holes open."""


def used_share(table: HostTable) -> float:
    """The larger of the used shares of vCPUs and memory, of all hosts together."""
    size = slice(table.size)
    free = float(table.free_vcpus[size].sum()), float(table.free_memory_mb[size].sum())
    capacity = float(table.cap_vcpus[size].sum()), float(table.cap_memory_mb[size].sum())
    return max(1.0 - part / max(whole, 1e-9) for part, whole in zip(free, capacity, strict=True))


class LeftoverWeigher(Weigher):
    """How near the free shares of vCPUs and memory, with the server placed, come to ``[scheduler] leftover_shape``.

    The weight is ``-abs(vcpus - shape * memory) - TIGHTNESS * (vcpus + memory)``, of free shares. A host that keeps vCPUs without
    memory, or memory without vCPUs, takes no server with them. The shape is what the servers that come can use best: 1 for
    servers that take equal shares, more if they take more of the vCPUs than of the memory.

    Does not apply while the fleet is emptier than ``leftover_from``: the other weighers spread the servers then.
    """

    option = "leftover_weight_multiplier"
    reads: ClassVar[tuple[str, ...] | None] = ("amounts",)

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        if settings.leftover_from > 0:  # whether it applies then changes with any host, so no answer can be kept
            self.reads = None  # type: ignore[misc]  # of this object alone

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        least = self.settings.leftover_from
        if least and least > request.remembered(self.name, lambda: used_share(hosts.table)):
            return None
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
