"""DiskFilter: passes hosts with enough free local disk for the flavor."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts
from scheduler.table.kernels import at_least


class DiskFilter(Filter):
    """Free is computed as in RamFilter. A server without local disk fits on every host, even an over-full one."""

    reason = "not enough disk"
    guards_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return at_least(hosts.room("disk_gb"), request.disk_gb) if request.disk_gb else None
