"""Weighers by the members of a server group with a soft policy."""

from __future__ import annotations

import numpy as np

from objects.group import GroupPolicy
from scheduler.plan.request import Request
from scheduler.table.arrays import Floats, Ints
from scheduler.table.host_table import HostTable
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher


class ServerGroupSoftAffinityWeigher(Weigher):
    """Prefers hosts with more members of the group."""

    option = "soft_affinity_weight_multiplier"
    applies_when = ("group",)

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        return hosts.members.astype(np.float64) if request.policy is GroupPolicy.SOFT_AFFINITY else None

    def weighed_rows(self, table: HostTable, request: Request) -> Ints | None:
        return request.rows_with_members(table.rows_of) if request.policy is GroupPolicy.SOFT_AFFINITY else None


class ServerGroupSoftAntiAffinityWeigher(Weigher):
    """Prefers hosts with fewer members of the group."""

    option = "soft_anti_affinity_weight_multiplier"
    applies_when = ("group",)

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        return -hosts.members.astype(np.float64) if request.policy is GroupPolicy.SOFT_ANTI_AFFINITY else None

    def weighed_rows(self, table: HostTable, request: Request) -> Ints | None:
        return request.rows_with_members(table.rows_of) if request.policy is GroupPolicy.SOFT_ANTI_AFFINITY else None
