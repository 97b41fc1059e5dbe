"""AggregateTypeAffinityFilter: reserves aggregates for certain flavors."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts

KEY = "instance_type"


class AggregateTypeAffinityFilter(Filter):
    """If a host's aggregates have the key ``instance_type``, its comma-separated values must contain the flavor's name."""

    reason = "kept for other flavors"
    on_demand = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if KEY not in hosts.table.aggregates.keys:
            return None
        name = request.spec.flavor.name
        return hosts.aggregated(self.name, lambda some: name in some.words.get(KEY, (name,)))
