"""AggregateTypeAffinityFilter: aggregates for certain flavors."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts

KEY = "instance_type"


class AggregateTypeAffinityFilter(Filter):
    """Hosts of aggregates with the key ``instance_type`` take only flavors whose names these list, separated by commas."""

    reason = "kept for other flavors"
    on_demand = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if KEY not in hosts.table.aggregates.keys:
            return None
        name = request.spec.flavor.name
        return hosts.aggregated(self.name, lambda some: name in some.words.get(KEY, (name,)))
