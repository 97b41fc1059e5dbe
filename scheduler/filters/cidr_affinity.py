"""SimpleCIDRAffinityFilter: hosts whose address is in a network."""

from __future__ import annotations

import numpy as np

from objects import errors, hints
from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class SimpleCIDRAffinityFilter(Filter):
    """The hints ``build_near_host_ip`` and ``cidr`` (/24 unless given). A host that tells no address
    (``host_ip``) is near to nothing."""

    reason = "not near the address of the hint build_near_host_ip"
    on_demand = True
    applies_when = ("scheduler_hints",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if hints.NEAR not in request.spec.scheduler_hints:
            return None
        try:
            network = hints.near(request.spec.scheduler_hints)
        except errors.Invalid:  # the API lets none of these pass
            return np.zeros(len(hosts), dtype=np.bool_)
        return None if network is None else hosts.within(network)
