"""AvailabilityZoneFilter: the zone that was asked for."""

from __future__ import annotations

from scheduler.arrays import Mask
from scheduler.filters.base import Filter
from scheduler.hosts import Hosts
from scheduler.kernels import equal
from scheduler.request import Request


class AvailabilityZoneFilter(Filter):
    """A host is in the zone its aggregate names, otherwise in the default zone."""

    reason = "not in the availability zone asked for"

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return equal(hosts.zone, request.zone) if request.zone is not None else None
