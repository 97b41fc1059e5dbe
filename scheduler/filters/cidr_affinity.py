"""SimpleCIDRAffinityFilter: passes hosts with an address in a given network."""

from __future__ import annotations

import numpy as np

from objects import errors, hints
from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class SimpleCIDRAffinityFilter(Filter):
    """The hints ``build_near_host_ip`` and ``cidr`` (default /24) give the network. A host without the attribute ``host_ip``
    does not pass."""

    reason = "not near the address of the hint build_near_host_ip"
    on_demand = True
    applies_when = ("scheduler_hints",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if hints.NEAR not in request.spec.scheduler_hints:
            return None
        try:
            network = hints.near(request.spec.scheduler_hints)
        except errors.Invalid:  # the API refuses these
            return np.zeros(len(hosts), dtype=np.bool_)
        return None if network is None else hosts.within(network)
