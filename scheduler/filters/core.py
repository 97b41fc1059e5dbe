"""CoreFilter: free vCPUs for the flavor."""

from __future__ import annotations

from scheduler.arrays import Mask
from scheduler.filters.base import Filter
from scheduler.hosts import Hosts
from scheduler.kernels import at_least
from scheduler.request import Request


class CoreFilter(Filter):
    """Capacity with the allocation ratio applied, less what is claimed or used by guests we do not know."""

    reason = "not enough vCPUs"
    guards_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return at_least(hosts.room("vcpus"), request.vcpus) if request.vcpus else None
