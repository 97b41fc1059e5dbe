"""DiskWeigher: prefers hosts with more free disk; with a negative multiplier, fuller hosts."""

from __future__ import annotations

from scheduler.plan.request import Request
from scheduler.table.arrays import Floats
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher


class DiskWeigher(Weigher):
    least = 0.0
    option = "disk_weight_multiplier"

    @property
    def multiplier(self) -> float:
        return self.settings.disk_weight_multiplier

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        return hosts.free_disk_gb
