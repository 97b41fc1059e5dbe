"""ResourceClassFilter: enough of the custom resource classes that the flavor asks for."""

from __future__ import annotations

import numpy as np

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class ResourceClassFilter(Filter):
    """``resources:CUSTOM_NAME`` = amount in the flavor's extra specs. What of it is claimed, or used by guests we do not know, is
    not free; there is no over-allocation."""

    reason = "not enough of a custom resource class"
    guards_host = True
    on_demand = True
    applies_when = ("flavor.extra_specs",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if not request.resources:
            return None
        passed = np.ones(len(hosts), dtype=np.bool_)
        for name, amount in request.resources.items():
            passed &= hosts.free_resource(name) >= amount
        return passed

    def refusal(self, hosts: Hosts, request: Request) -> str:
        """Which class it is for."""
        asked = request.resources.items()
        missing = [name for name, _ in asked if not hosts.offered(name).any()]
        if missing:
            return f"no host offers {', '.join(missing)}"
        short = [name for name, amount in asked if not (hosts.free_resource(name) >= amount).any()]
        return f"not enough {', '.join(short)}" if short else f"not enough {' and '.join(request.resources)} on any host left"
