"""ForceHosts: only the hosts, or nodes, that an administrator named."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class ForceHosts(Filter):
    """Always in force. Host names are compared without case, node names with it."""

    reason = "not the host asked for"
    guards_host = True
    on_demand = True
    applies_when = ("force_hosts", "force_nodes")

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return hosts.named(request.spec.force_hosts, request.spec.force_nodes) if request.forced else None
