"""AllHostsFilter: passes every host."""

from __future__ import annotations

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts


class AllHostsFilter(Filter):
    """Exists for configurations that name it. The filters in ``always.py`` still run."""

    reason = ""
    on_demand = True
    reads = ()

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return None
