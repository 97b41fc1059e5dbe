"""ExcludedHosts: not a host that has just failed to take this very build."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class ExcludedHosts(Filter):
    """Always in force: who asks names hosts of earlier attempts, under a new fence (Nova's RetryFilter)."""

    reason = "tried before"
    guards_host = True
    on_demand = True
    applies_when = ("excluded_hosts",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return ~hosts.named(request.spec.excluded_hosts) if request.spec.excluded_hosts else None
