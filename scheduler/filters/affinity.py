"""ServerGroupAffinityFilter: where the other members of the group are."""

from __future__ import annotations

import numpy as np

from objects.group import Policy
from scheduler.arrays import Mask
from scheduler.filters.base import Filter
from scheduler.hosts import Hosts
from scheduler.request import Request


class ServerGroupAffinityFilter(Filter):
    """The first member may go anywhere. While members are on several hosts, because one of them is moving, nobody joins them."""

    reason = "not where the server group is"
    guards_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if request.policy is not Policy.AFFINITY or request.founding:
            return None
        return np.zeros(len(hosts), dtype=np.bool_) if request.split and not request.yielding else hosts.members > 0
