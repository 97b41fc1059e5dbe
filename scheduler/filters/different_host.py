"""DifferentHostFilter: passes hosts that have none of the named servers."""

from __future__ import annotations

from objects import hints
from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class DifferentHostFilter(Filter):
    """The hint ``different_host`` names the servers by uuid."""

    reason = "with one of the servers of the hint different_host"
    on_demand = True
    applies_when = ("scheduler_hints",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        named = hints.servers(request.spec.scheduler_hints, hints.DIFFERENT_HOST)
        places = tuple(request.places[uuid] for uuid in named if uuid in request.places)
        return ~hosts.named(places) if places else None
