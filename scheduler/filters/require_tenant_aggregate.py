"""RequireTenantAggregate: keeps projects that have aggregates of their own in these."""

from __future__ import annotations

import numpy as np

from scheduler.filters.aggregate_tenants import PREFIX
from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class RequireTenantAggregate(Filter):
    """The counterpart of AggregateMultiTenancyIsolation. If keys beginning with ``filter_tenant_id`` list the project, it goes only
    to hosts of these aggregates. Otherwise it goes to any host, or with ``aggregate_required_for_tenants`` to none."""

    reason = "not in an aggregate of the project"
    on_demand = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        project = request.spec.project_id
        if any(aggregate.lists(PREFIX, project) for aggregate in hosts.table.aggregates.single):
            return hosts.aggregated(self.name, lambda some: some.lists(PREFIX, project))
        return np.zeros(len(hosts), dtype=np.bool_) if self.settings.aggregate_required_for_tenants else None
