"""LeftoverWeigher: prefers hosts that keep free room of a useful shape."""

from __future__ import annotations

import math

import numpy as np

from scheduler.framework.batch_request import UNPACKED_POLICIES, Request
from scheduler.framework.columns import Floats, HostTable
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from scheduler.framework.weigher import Weigher

TIGHTNESS = 0.02
"""How much fuller hosts are preferred among those with room of a similar shape. It keeps large holes open."""

USED_AGAIN_PART = 64
"""How full the fleet is, is looked at again when more than one in so many hosts have changed."""

SIMILAR, OVERCOMMITTED = 2 / 3, 0.4
"""By how much the used share of one resource is below that of the other. Down to the first, the mix of servers may explain it. From
the second on, the resource is taken as overcommitted: no more of it can be used than that."""

MIX_KNOWN_FROM = 0.1
"""Used share from which the servers that run say what the mix of servers is."""

LEAST_USABLE = 1 / 64
"""The smallest usable part."""

USABLE_STEPS = 8
"""Usable parts are rounded to one in so many steps between a number and its double, so that they seldom change."""


def used_shares(table: HostTable, request: Request) -> tuple[float, float]:
    """The used shares of vCPUs and memory of all hosts together that are in service: enabled, and in an enabled cell."""
    size = slice(table.size)
    is_open = (table.eligible[size] & table.enabled[size]).astype(np.float64)  # a product is faster than a sum of some
    hosts = Hosts(table, request)
    shares = []
    for resource in ("vcpus", "memory_mb"):
        room, capacity = float(is_open.dot(hosts.free_room(resource))), float(is_open.dot(hosts.capacity_of(resource)))
        shares.append(1.0 - room / capacity if capacity > 0.0 else 0.0)
    return shares[0], shares[1]


def usable_part(used: float, other: float) -> float:
    """The part of a resource that can be used until the other one is full, from the used shares of both.

    With overcommitted vCPUs 0.1 of them may be used when 0.4 of the memory is. Then no more than 0.25 of them can be, at today's
    mix of servers. 1 where the shares are similar, and in a fleet that is nearly empty.
    """
    if other < MIX_KNOWN_FROM:
        return 1.0
    ratio = max(used / other, LEAST_USABLE)
    if ratio >= SIMILAR:
        return 1.0
    part = max(ratio, 1.0 - (SIMILAR - ratio) * (1.0 - OVERCOMMITTED) / (SIMILAR - OVERCOMMITTED))
    return math.exp2(round(USABLE_STEPS * math.log2(part)) / USABLE_STEPS)


class LeftoverWeigher(Weigher):
    """How near the free shares of vCPUs and memory, with the server placed, come to ``[scheduler] leftover_shape``.

    The weight is ``-abs(vcpus - shape * memory) - TIGHTNESS * (vcpus + memory)``, of free shares. A host that keeps vCPUs without
    memory, or memory without vCPUs, takes no server with them. The shape is what the servers that come can use best: 1 for
    servers that take equal shares, more if they take more of the vCPUs than of the memory.

    Shares are of what can be used: see ``usable_part``. Otherwise hosts with overcommitted vCPUs always seem to keep too many.

    A host with NUMA nodes counts as if each had as much free as the fullest, and 0 at least. So servers of one node go where a node
    is full already, and room on all nodes of a host is kept for servers that need it.

    Does not apply while the fleet is emptier than ``leftover_from``: the other weighers spread the servers then. If that is above
    0, it never applies to members of groups with UNPACKED_POLICIES.
    """

    option = "leftover_weight_multiplier"
    reads = ("amounts", "unpacked_policy", "extra_specs", "image")

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self._used = 0.0, 0.0
        self._used_of: tuple[HostTable, int] | None = None

    def fleet_terms(self, table: HostTable, request: Request) -> tuple[float, ...] | None:
        """The usable parts of vCPUs and of memory. How full the fleet is, is looked at as USED_AGAIN_PART says."""
        known, changes = self._used_of or (None, 0)
        if known is not table or table.change_count - changes > table.size // USED_AGAIN_PART:
            self._used, self._used_of = used_shares(table, request), (table, table.change_count)
        vcpus, memory = self._used
        if max(vcpus, memory) < self.settings.leftover_from:
            return None
        return usable_part(vcpus, memory), usable_part(memory, vcpus)

    def packs_request(self, table: HostTable, request: Request) -> bool:
        """Whether it weighs hosts for the request."""
        spreads = self.settings.leftover_from > 0.0 and request.group_policy in UNPACKED_POLICIES
        return not spreads and self.cached_terms(table, request) is not None

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        if not self.packs_request(hosts.table, request):
            return None
        terms = self.cached_terms(hosts.table, request) or (1.0, 1.0)
        # in place: a pass of its own for each operation, over the arrays of two resources
        vcpus = self._free_share(hosts, "vcpus", request, terms[0])
        memory = self._free_share(hosts, "memory_mb", request, terms[1])
        apart = memory * self.settings.leftover_shape
        apart -= vcpus
        np.abs(apart, out=apart)
        vcpus += memory
        vcpus *= -TIGHTNESS
        vcpus -= apart
        return vcpus

    @staticmethod
    def _free_share(hosts: Hosts, resource: str, request: Request, usable: float) -> Floats:
        """What is free with the server placed, of the usable part of each host."""
        room, even = hosts.free_room(resource), hosts.even_room(resource)
        amount: int = getattr(request, resource)
        share: Floats
        if even is None:
            share = room - amount
        else:
            share = np.minimum(room, even, out=even)
            share -= amount
            np.maximum(share, 0.0, out=share)
        share *= hosts.inverse_capacity(resource)
        if usable < 1.0:
            share -= 1.0 - usable
            share /= usable
        return share
