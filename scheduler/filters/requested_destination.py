"""RequestedDestination: only the host, or node, that was asked for."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class RequestedDestination(Filter):
    """Always in force. All other filters are asked too. Host names are compared without case, node names with it."""

    reason = "not the destination asked for"
    guards_host = True
    on_demand = True
    applies_when = ("requested_destination",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        wanted = request.spec.requested_destination
        if wanted is None or (wanted.host is None and wanted.node is None):
            return None
        return hosts.named((wanted.host,) if wanted.host else (), (wanted.node,) if wanted.node else ())
