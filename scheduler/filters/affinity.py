"""ServerGroupAffinityFilter: passes the host of the group's other members."""

from __future__ import annotations

import numpy as np

from objects.group import GroupPolicy
from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class ServerGroupAffinityFilter(Filter):
    """The first member may go anywhere. While members are on several hosts, because one of them is moving, no host passes."""

    reason = "not where the server group is"
    guards_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if request.policy is not GroupPolicy.AFFINITY or request.founding:
            return None
        return np.zeros(len(hosts), dtype=np.bool_) if request.split and not request.yielding else hosts.members > 0
