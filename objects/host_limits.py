"""Upper limits for the resources that a host may offer: an agent that offers more has a fault, or tries to attract servers."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from objects import errors
from objects.base import Object
from objects.compute_node import ComputeNode
from objects.host_terms import Ratios

NODES_LIMIT = 256
"""Maximum number of nodes of one host."""
CLASSES_LIMIT = 256
"""Maximum number of custom resource classes of one node."""


class HostLimits(Object, frozen=True, kw_only=True):
    """The most that all nodes of one host offer together, before allocation ratios.

    ``resource``: for each custom resource class. The options in group [conductor] have these names after ``host_max_``.
    ``ratios``: of hosts that have none of their own. ``sizes_wait``: whether sizes wait for an operator.
    """

    vcpus: int = 4096
    memory_mb: int = 64 * 2**20
    disk_gb: int = 10 * 2**20
    resource: int = 1_000_000
    ratios: Ratios = Ratios()
    sizes_wait: bool = True

    def check_node(self, node: ComputeNode, others: Collection[ComputeNode] = ()) -> None:
        """Raise Invalid, naming the option, if the node and the host's ``others`` offer more."""
        known = [node, *others]
        if len(known) > NODES_LIMIT:
            raise errors.Invalid(f"stats of {node.host}, {node.node}: a host has at most {NODES_LIMIT} nodes")
        if max(len(node.resources), len(node.resources_used)) > CLASSES_LIMIT:
            raise errors.Invalid(f"stats of {node.host}, {node.node}: a node has at most {CLASSES_LIMIT} custom resource classes")
        refuse = partial(_refuse_above, node)
        for name in ("vcpus", "memory_mb", "disk_gb"):
            refuse(name, name, sum(getattr(offering, name) for offering in known), getattr(self, name))
        for name in node.resources:
            refuse(name, "resource", sum(offering.resources.get(name, 0) for offering in known), self.resource)


def _refuse_above(node: ComputeNode, offer: str, option: str, offered: float, limit: float) -> None:
    if offered > limit:
        raise errors.Invalid(
            f"stats of {node.host}, {node.node}: the host would offer {offer} {offered:g}, more than [conductor] host_max_{option} "
            f"= {limit:g}; if it really has that much, raise the option at its cell's conductors"
        )
