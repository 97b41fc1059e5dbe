"""AvailabilityZoneFilter: passes hosts in the requested zone."""

from __future__ import annotations

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask, are_equal
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts


class AvailabilityZoneFilter(Filter):
    """A host is in the zone its aggregate names, otherwise in the default zone."""

    reason = "not in the availability zone asked for"
    reads = ("zone",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return are_equal(hosts.zone_numbers, request.zone) if request.zone is not None else None
