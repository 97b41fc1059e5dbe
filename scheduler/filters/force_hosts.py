"""ForceHosts: only the hosts, or nodes, that an administrator named."""

from __future__ import annotations

from scheduler.arrays import Mask
from scheduler.filters.base import Filter
from scheduler.hosts import Hosts
from scheduler.request import Request


class ForceHosts(Filter):
    """Always in force. Host names are compared without case, node names with it."""

    reason = "not the host asked for"
    guards_host = True
    on_demand = True
    heeds = ("force_hosts", "force_nodes")

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return hosts.named(request.spec.force_hosts, request.spec.force_nodes) if request.forced else None
