"""CoreFilter: passes hosts with enough free vCPUs for the flavor."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts
from scheduler.table.kernels import at_least


class CoreFilter(Filter):
    """Free is the capacity with the allocation ratio applied, less what is claimed or used by unknown guests."""

    reason = "not enough vCPUs"
    guards_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return at_least(hosts.room("vcpus"), request.vcpus) if request.vcpus else None
