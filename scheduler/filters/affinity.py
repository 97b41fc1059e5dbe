"""ServerGroupAffinityFilter: where the other members of the group are."""

from __future__ import annotations

from objects.group import Policy
from scheduler.arrays import Mask
from scheduler.filters.base import Filter
from scheduler.hosts import Hosts
from scheduler.request import Request


class ServerGroupAffinityFilter(Filter):
    """The first member may go anywhere."""

    reason = "not where the server group is"
    dynamic = True
    guards_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if request.policy is not Policy.AFFINITY or not any(request.members.real.values()):
            return None
        return hosts.members > 0
