"""IgnoreHosts: hosts the request says not to use."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class IgnoreHosts(Filter):
    """Always in force. Host names are compared without case."""

    reason = "ignored by the request"
    guards_host = True
    on_demand = True
    applies_when = ("ignore_hosts",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return ~hosts.named(request.spec.ignore_hosts) if request.spec.ignore_hosts else None
