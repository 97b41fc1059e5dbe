"""NUMA nodes of hosts as resources: what a host has of each, what a server takes of them, and how many of them it asks for.

Inventories and claims hold the amounts of nodes beside custom resource classes, under the names ``NUMA0_VCPU``,
``NUMA0_MEMORY_MB``, ``NUMA1_VCPU`` and so on. No flavor can ask for these names. A host without them has no nodes that are
counted.

A server that is tied to several nodes takes equal parts of them. A server whose claim names no node is counted on every node of
its host, because it may use any of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from objects.base import Object

HOST_NODES_LIMIT = 16
"""Maximum number of NUMA nodes that a host reports."""

FLAVOR_KEY, IMAGE_KEY = "hw:numa_nodes", "hw_numa_nodes"
"""The extra spec of a flavor and the property of an image that say over how many nodes a server is divided."""

_CLASS = re.compile(r"NUMA([0-9]{1,2})_(?:VCPU|MEMORY_MB)")
_COUNT = re.compile(r"[1-9][0-9]{0,2}")
_UNEQUAL_KEYS = frozenset({"hw:numa_cpus.0", "hw:numa_mem.0"})
_UNEQUAL_PROPERTIES = frozenset({"hw_numa_cpus.0", "hw_numa_mem.0"})


class HostNumaNode(Object, frozen=True, kw_only=True):
    """CPUs and MiB of one NUMA node of a host, before reserved amounts and allocation ratios."""

    vcpus: int
    memory_mb: int


@lru_cache(maxsize=HOST_NODES_LIMIT)
def class_names(node: int) -> tuple[str, str]:
    """The names of the vCPUs and of the memory of a node."""
    return f"NUMA{node}_VCPU", f"NUMA{node}_MEMORY_MB"


def node_of_class(name: str) -> int | None:
    """The number of the node that a resource class belongs to; None for any other class."""
    match = _CLASS.fullmatch(name)
    return int(match[1]) if match is not None else None


def share_per_node(amount: int, nodes: int) -> int:
    """What a server takes of each of so many nodes."""
    return -(-amount // nodes)


def taken_by_class(nodes: Sequence[int], vcpus: int, memory_mb: int) -> dict[str, int]:
    """What a server that is tied to these nodes takes of them, by class."""
    amounts: dict[str, int] = {}
    if not nodes:
        return amounts
    node_shares = share_per_node(vcpus, len(nodes)), share_per_node(memory_mb, len(nodes))
    for node in nodes:
        of_vcpus, of_memory = class_names(node)
        amounts[of_vcpus], amounts[of_memory] = node_shares
    return amounts


def without_nodes(resources: Mapping[str, int]) -> dict[str, int]:
    """The amounts that belong to no node."""
    return {name: amount for name, amount in resources.items() if node_of_class(name) is None}


def offered_by_class(nodes: Sequence[HostNumaNode], vcpus: float, memory_mb: float) -> dict[str, int]:
    """The capacity of each node, by class: its part of the host's ``vcpus`` and MiB, rounded down.

    These are without what is reserved, with allocation ratios.
    """
    cpus, memory = sum(node.vcpus for node in nodes), sum(node.memory_mb for node in nodes)
    amounts: dict[str, int] = {}
    for number, node in enumerate(nodes):
        parts = (int(vcpus * node.vcpus / cpus) if cpus else 0, int(memory_mb * node.memory_mb / memory) if memory else 0)
        amounts |= zip(class_names(number), parts, strict=True)
    return amounts


def requested_nodes(extra_specs: Mapping[str, str], image_properties: Mapping[str, str], vcpus: int, memory_mb: int) -> int:
    """The number of nodes that a server of this size is divided over: 1 unless its flavor or image says otherwise.

    0: it cannot be divided into equal parts, or asks for unequal ones.
    """
    of_flavor, of_image = extra_specs.get(FLAVOR_KEY), image_properties.get(IMAGE_KEY)
    text = of_flavor if of_flavor is not None else of_image
    if text is None:
        return 1
    text = text.strip()
    if of_image is not None and of_image.strip() != text:
        return 0
    if not (_UNEQUAL_KEYS.isdisjoint(extra_specs) and _UNEQUAL_PROPERTIES.isdisjoint(image_properties)):
        return 0
    count = int(text) if _COUNT.fullmatch(text) is not None else 0
    return 0 if not count or vcpus % count or memory_mb % count else count
