"""RequestedCell: only the cell that was asked for, or that a server to be moved is in."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class RequestedCell(Filter):
    """Always in force. What this cell is open to, ComputeFilter knows."""

    reason = "in another cell"
    guards_host = True
    on_demand = True
    applies_when = ("requested_destination", "move")

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return None if request.only_cell is None else hosts.cell == request.only_cell
