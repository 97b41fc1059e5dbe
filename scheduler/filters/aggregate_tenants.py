"""AggregateMultiTenancyIsolation: reserves aggregates for certain projects."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.aggregation import Aggregation
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts

PREFIX = "filter_tenant_id"


class AggregateMultiTenancyIsolation(Filter):
    """If keys beginning with ``filter_tenant_id`` exist in a host's aggregates, their comma-separated values must list the project.
    The filter keeps other projects out; it does not confine the listed ones to these hosts."""

    reason = "kept for other projects"
    on_demand = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        keys = [key for key in hosts.table.aggregates.keys if key.startswith(PREFIX)]
        if not keys:
            return None
        project = request.spec.project_id

        def admits(aggregates: Aggregation) -> bool:
            lists = [aggregates.words[key] for key in keys if key in aggregates.words]
            return not lists or any(project in each for each in lists)

        return hosts.aggregated(self.name, admits)
