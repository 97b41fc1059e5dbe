"""NumInstancesFilter: limits the instances on a host."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts
from scheduler.table.kernels import below


class NumInstancesFilter(Filter):
    """Counts the instances claimed on the host, including those of the batch."""

    reason = "too many instances"

    def passes(self, hosts: Hosts, request: Request) -> Mask:
        return below(hosts.instances, hosts.least("max_instances_per_host", self.settings.max_instances_per_host))
