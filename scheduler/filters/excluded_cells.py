"""ExcludedCells: not in a cell that has just failed to take this very build."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class ExcludedCells(Filter):
    """Always in force: the conductor names cells it could not reach, under a new fence."""

    reason = "in a cell that cannot take the build now"
    guards_host = True
    on_demand = True
    applies_when = ("excluded_cells",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if not request.excluded_cells:
            return None
        cell = hosts.cell
        mask = cell >= 0
        for number in request.excluded_cells:
            mask &= cell != number
        return mask
