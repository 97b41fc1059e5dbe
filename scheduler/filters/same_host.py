"""SameHostFilter: passes hosts that have at least one of the named servers."""

from __future__ import annotations

import numpy as np

from objects import hints
from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class SameHostFilter(Filter):
    """The hint ``same_host`` names the servers by uuid. Servers of other projects, and servers without a host, match no host."""

    reason = "not with the servers of the hint same_host"
    on_demand = True
    applies_when = ("scheduler_hints",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        named = hints.servers(request.spec.scheduler_hints, hints.SAME_HOST)
        if not named:
            return None
        places = tuple(request.places[uuid] for uuid in named if uuid in request.places)
        return hosts.named(places) if places else np.zeros(len(hosts), dtype=np.bool_)
