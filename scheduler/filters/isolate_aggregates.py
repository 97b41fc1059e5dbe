"""IsolateAggregates: aggregates for what requires their traits."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.aggregation import Aggregation
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts

SCOPE = "trait:"
REQUIRED = "required"


class IsolateAggregates(Filter):
    """Hosts of aggregates with ``trait:NAME`` = ``required`` take only servers whose flavor or image requires all of these traits,
    in the same words."""

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
