"""NumInstancesFilter: not too many instances on a host."""

from __future__ import annotations

from scheduler.arrays import Mask
from scheduler.filters.base import Filter
from scheduler.hosts import Hosts
from scheduler.kernels import below
from scheduler.request import Request


class NumInstancesFilter(Filter):
    """Counts the instances claimed on the host, those of the batch included."""

    reason = "too many instances"

    def passes(self, hosts: Hosts, request: Request) -> Mask:
        return below(hosts.instances, hosts.least("max_instances_per_host", self.settings.max_instances_per_host))
