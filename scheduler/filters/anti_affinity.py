"""ServerGroupAntiAffinityFilter: limits the members of the group per host."""

from __future__ import annotations

from objects.group import GroupPolicy
from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class ServerGroupAntiAffinityFilter(Filter):
    """Members in the same batch count, and so do slots held for the retries of other members."""

    reason = "too many members of the server group there already"
    guards_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if request.group is None or request.policy is not GroupPolicy.ANTI_AFFINITY:
            return None
        return hosts.members < request.group.max_server_per_host
