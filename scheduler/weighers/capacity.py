"""Weighers by free amounts: memory, vCPUs and local disk."""

from __future__ import annotations

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Floats
from scheduler.framework.hosts import Hosts
from scheduler.framework.weigher import Weigher


class RAMWeigher(Weigher):
    """Prefers hosts with more free memory; with a negative multiplier, fuller hosts."""

    least = 0.0
    option = "ram_weight_multiplier"
    reads = ()

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        return hosts.free_memory_mb


class CPUWeigher(Weigher):
    """Prefers hosts with more free vCPUs; with a negative multiplier, fuller hosts."""

    least = 0.0
    option = "cpu_weight_multiplier"
    reads = ()

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        return hosts.free_vcpus


class DiskWeigher(Weigher):
    """Prefers hosts with more free disk; with a negative multiplier, fuller hosts."""

    least = 0.0
    option = "disk_weight_multiplier"
    reads = ()

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        return hosts.free_disk_gb
