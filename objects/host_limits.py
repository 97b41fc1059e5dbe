"""Upper limits for the resources that a host may offer: an agent that offers more has a fault, or tries to attract servers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from objects import errors
from objects.base import Object
from objects.compute_node import ComputeNode


class HostLimits(Object, frozen=True, kw_only=True):
    """The most that all nodes of one host offer together, before allocation ratios, and the largest ratio.

    ``resource``: for each custom resource class. The options in group [conductor] have these names after ``host_max_``.
    """

    vcpus: int = 4096
    memory_mb: int = 64 * 2**20
    disk_gb: int = 10 * 2**20
    resource: int = 1_000_000
    allocation_ratio: float = 256.0

    def check(self, node: ComputeNode, others: Iterable[ComputeNode] = ()) -> None:
        """Raise Invalid, naming the option, if the node and the host's ``others`` offer more."""
        known = [node, *others]
        refuse = partial(_refuse, node)
        for name in ("vcpus", "memory_mb", "disk_gb"):
            refuse(name, name, sum(getattr(each, name) for each in known), getattr(self, name))
        for name in ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio"):
            refuse(name, "allocation_ratio", getattr(node, name), self.allocation_ratio)
        for name in node.resources:
            refuse(name, "resource", sum(each.resources.get(name, 0) for each in known), self.resource)


def _refuse(node: ComputeNode, what: str, option: str, offered: float, limit: float) -> None:
    if offered > limit:
        raise errors.Invalid(
            f"stats of {node.host}, {node.node}: the host would offer {what} {offered:g}, more than [conductor] host_max_{option} "
            f"= {limit:g}; if it really has that much, raise the option at its cell's conductors"
        )
