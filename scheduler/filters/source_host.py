"""SourceHost: a move goes to another host."""

from __future__ import annotations

from objects.move import MoveKind
from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts


class SourceHost(Filter):
    """Always in force; a resize may stay where it is if ``allow_resize_to_same_host`` says so."""

    reason = "the server is there already"
    guards_host = True
    on_demand = True
    applies_when = ("move",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        move = request.spec.move
        if move is None or (move.kind is MoveKind.RESIZE and self.settings.allow_resize_to_same_host):
            return None
        return ~hosts.named((move.source_host,))
