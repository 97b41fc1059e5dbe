"""Weighers by the members of a server group."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from objects.group import GroupPolicy
from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Floats, divide_by
from scheduler.framework.hosts import Hosts
from scheduler.framework.weigher import Weigher


class ServerGroupSoftAffinityWeigher(Weigher):
    """Prefers hosts with more members of the group."""

    option = "soft_affinity_weight_multiplier"
    applies_when = ("group",)
    row_inputs = ("group",)
    per_host = True

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        return hosts.member_counts.astype(np.float64) if request.group_policy is GroupPolicy.SOFT_AFFINITY else None


class AffinityRoomWeigher(Weigher):
    """Prefers, for the first member of an affinity group, hosts with room for more servers of its size.

    All later members must join it, and nobody says how many will come.
    """

    least = 0.0
    option = "affinity_room_weight_multiplier"
    applies_when = ("founding",)
    per_host = True
    reads: ClassVar[tuple[str, ...] | None] = ("amounts", "group")

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        if not request.founds_group:
            return None
        amounts = {resource: getattr(request, resource) for resource in ("vcpus", "memory_mb", "disk_gb")}
        on_nodes = hosts.most_on_nodes(request.node_part)
        if on_nodes is None:
            rooms = []
        elif hosts.table.current_aggregates.lowering or on_nodes[on_nodes.argmax()] == np.inf:
            rooms = [on_nodes]
        else:  # nodes have no more vCPUs and memory than their host
            rooms, amounts = [on_nodes], {"disk_gb": request.disk_gb}
        rooms += [divide_by(hosts.free_room(resource), amount) for resource, amount in amounts.items() if amount]
        if not rooms:
            return np.zeros(len(hosts))
        room: Floats = rooms[0]
        for other in rooms[1:]:
            np.minimum(room, other, out=room)
        np.floor(room, out=room)
        if room.size and room[room.argmin()] < 0.0:
            np.maximum(room, 0.0, out=room)
        return room


class ServerGroupSoftAntiAffinityWeigher(Weigher):
    """Prefers hosts with fewer members of the group."""

    option = "soft_anti_affinity_weight_multiplier"
    applies_when = ("group",)
    row_inputs = ("group",)
    per_host = True

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        return np.multiply(hosts.member_counts, -1.0) if request.group_policy is GroupPolicy.SOFT_ANTI_AFFINITY else None
