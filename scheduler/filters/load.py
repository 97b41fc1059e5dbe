"""Filters by load: limit the builds under way and the instances on a host."""

from __future__ import annotations

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask, below
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts


class IoOpsFilter(Filter):
    """Limits the builds under way on a host.

    Builds under way are claims whose guest the agent does not run yet, including those of the batch.

    If the agent runs more guests than are claimed, the count is negative. A limit of 0 set by an aggregate still refuses the host.
    """

    reason = "too many builds under way"
    reads = ()

    def passes(self, hosts: Hosts, request: Request) -> Mask:
        limit = hosts.least("max_io_ops_per_host", self.settings.max_io_ops_per_host)
        under = below(hosts.building, limit)
        return under if isinstance(limit, (int, float)) else under & (limit > 0)


class NumInstancesFilter(Filter):
    """Limits the instances on a host.

    Counts the instances claimed on the host, including those of the batch.
    """

    reason = "too many instances"
    reads = ()

    def passes(self, hosts: Hosts, request: Request) -> Mask:
        return below(hosts.instances, hosts.least("max_instances_per_host", self.settings.max_instances_per_host))
