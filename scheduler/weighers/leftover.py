"""LeftoverWeigher: prefers hosts that keep free room of a useful shape."""

from __future__ import annotations

import numpy as np

from scheduler.plan.request import Request
from scheduler.settings import SchedulerSettings
from scheduler.table.arrays import Floats
from scheduler.table.host_table import HostTable
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher

TIGHTNESS = 0.02
"""How much fuller hosts are preferred among those with room of a similar shape. It keeps large holes open."""

USED_AGAIN_PART = 64
"""How full the fleet is, is looked at again when more than one in so many hosts have changed."""


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
    reads = ("amounts",)

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self._used = 0.0
        self._used_of: tuple[HostTable, int] | None = None

    def applies(self, table: HostTable, request: Request) -> bool:
        least = self.settings.leftover_from
        return least <= 0.0 or request.remembered(self.name, lambda: self._used_share(table)) >= least

    def _used_share(self, table: HostTable) -> float:
        """``used_share``, looked at again when one in USED_AGAIN_PART hosts has changed."""
        if self._used_of is not None:
            known, changes = self._used_of
            if known is table and table.changes - changes <= table.size // USED_AGAIN_PART:
                return self._used
        self._used, self._used_of = used_share(table), (table, table.changes)
        return self._used

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        if not self.applies(hosts.table, request):
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
