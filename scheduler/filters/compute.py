"""ComputeFilter: the host's agent is alive and new builds are welcome there."""

from __future__ import annotations

from scheduler.arrays import Mask
from scheduler.filters.base import Filter
from scheduler.hosts import Hosts
from scheduler.request import Request


class ComputeFilter(Filter):
    """Up (heard of lately, judged by our own clock), service and cell enabled. Forced hosts may be disabled, not dead."""

    reason = "no compute service that is up and enabled"
    guards_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask:
        mask = hosts.cell_open
        if not request.forced:
            mask = mask & ~hosts.disabled
        if not request.assume_up:
            mask = mask & (hosts.heard_at >= request.alive_since)
        return mask
