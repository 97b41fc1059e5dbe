"""AllHostsFilter: passes every host."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class AllHostsFilter(Filter):
    """Exists for configurations that name it. The filters in ``always.py`` still run."""

    reason = ""
    on_demand = True
    reads = ()

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return None
