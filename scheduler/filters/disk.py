"""DiskFilter: free local disk for the flavor."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts
from scheduler.table.kernels import at_least


class DiskFilter(Filter):
    """As for memory. A server without local disk fits everywhere, even on an over-full host."""

    reason = "not enough disk"
    guards_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return at_least(hosts.room("disk_gb"), request.disk_gb) if request.disk_gb else None
