"""RequestedCell: only the cell that was asked for, or that a server to be moved is in."""

from __future__ import annotations

from scheduler.arrays import Mask
from scheduler.filters.base import Filter
from scheduler.hosts import Hosts
from scheduler.request import Request


class RequestedCell(Filter):
    """Always in force. What this cell is open to, ComputeFilter knows."""

    reason = "in another cell"
    guards_host = True
    on_demand = True
    heeds = ("requested_destination", "move")

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return None if request.only_cell is None else hosts.cell == request.only_cell
