"""IsolateAggregates: reserves aggregates for servers that require their traits."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.aggregation import Aggregation
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts

SCOPE = "trait:"
REQUIRED = "required"


class IsolateAggregates(Filter):
    """If a host's aggregates have ``trait:NAME`` = ``required``, the flavor or image must have the same key and value, for each
    such trait."""

    reason = "kept for servers that require other traits"
    on_demand = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if not any(key.startswith(SCOPE) for key in hosts.table.aggregates.keys):
            return None
        spec = request.spec
        given = [*spec.flavor.extra_specs.items(), *(spec.image.properties.items() if spec.image else ())]
        required = {key for key, value in given if value == REQUIRED}

        def admits(some: Aggregation) -> bool:
            return all(key in required for key, texts in some.values.items() if key.startswith(SCOPE) and REQUIRED in texts)

        return hosts.aggregated(self.name, admits)
