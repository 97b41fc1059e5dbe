"""IoOpsFilter: not too many builds at once on a host."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts
from scheduler.table.kernels import below


class IoOpsFilter(Filter):
    """Builds under way are claims of which the agent does not run the guest yet, those of the batch included.

    Where the agent runs more guests than were claimed, none is under way, which is too many only for a limit of none at all.
    """

    reason = "too many builds under way"

    def passes(self, hosts: Hosts, request: Request) -> Mask:
        limit = hosts.least("max_io_ops_per_host", self.settings.max_io_ops_per_host)
        under = below(hosts.building, limit)
        return under if isinstance(limit, (int, float)) else under & (limit > 0)
