"""ServerGroupAntiAffinityFilter: no more members of the group on the host than its policy allows."""

from __future__ import annotations

from objects.group import Policy
from scheduler.arrays import Mask
from scheduler.filters.base import Filter
from scheduler.hosts import Hosts
from scheduler.request import Request


class ServerGroupAntiAffinityFilter(Filter):
    """Members of the same batch count, and so do slots held for members whose build may still move."""

    reason = "too many members of the server group there already"
    guards_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if request.group is None or request.policy is not Policy.ANTI_AFFINITY:
            return None
        return hosts.members < request.group.max_server_per_host
