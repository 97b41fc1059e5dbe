"""ComputeFilter: passes hosts whose agent is up, in enabled cells and with an enabled service."""

from __future__ import annotations

import numpy as np

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts


class ComputeFilter(Filter):
    """A host is up if its agent was heard of lately, by this process's clock. A forced host may be disabled, but must be up.

    A move within one cell may use that cell even if it takes no new builds.
    """

    reason = "no compute service that is up and enabled"
    guards_host = True
    reads = ("cells", "force_hosts", "force_nodes", "move")

    def passes(self, hosts: Hosts, request: Request) -> Mask:
        only_cell = request.only_cell if request.spec.move is not None else None
        if only_cell is None and not (request.is_forced or request.any_cell or request.returning_cells or request.unheard_cells):
            return hosts.are_up(request.alive_since)
        mask = hosts.cell_open if not request.any_cell else hosts.cell_numbers >= 0
        if only_cell is not None:
            mask = mask | (hosts.cell_numbers == only_cell)
        if not request.is_forced:
            mask = mask & ~hosts.is_disabled
        up = hosts.heard_at >= request.alive_since
        if request.returning_cells:
            up |= np.isin(hosts.cell_numbers, sorted(request.returning_cells))
        if request.unheard_cells:
            up |= np.isin(hosts.cell_numbers, sorted(request.unheard_cells)) & (hosts.heard_at > -np.inf)
        return mask & up
