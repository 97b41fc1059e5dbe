"""Filters by load: limit the builds under way and the instances on a host."""

from __future__ import annotations

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask, are_below
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
        limit = hosts.least_of_aggregates("max_io_ops_per_host", self.settings.max_io_ops_per_host)
        under = are_below(hosts.build_counts, limit)
        return under if isinstance(limit, (int, float)) else under & (limit > 0)


class NumInstancesFilter(Filter):
    """Limits the instances on a host.

    Counts the instances claimed on the host, including those of the batch.
    """

    reason = "too many instances"
    reads = ()

    def passes(self, hosts: Hosts, request: Request) -> Mask:
        return are_below(
            hosts.instance_counts, hosts.least_of_aggregates("max_instances_per_host", self.settings.max_instances_per_host)
        )
