"""What a host counts with, whatever its agent reports: sizes that an operator accepted, and allocation ratios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from objects.base import Object
from objects.compute_node import ComputeNode

GROWTH_FACTOR = 1.5
"""A node counts as reported up to this multiple of its accepted size."""
MEDIAN_FACTOR = 4
"""A new host counts with at most this multiple of its cell's median host."""
ALWAYS_COUNTED = {"vcpus": 64, "memory_mb": 256 * 1024, "disk_gb": 10 * 1024}
"""Sizes that a new host counts with in any cell: vCPUs, MiB, GiB."""

RATIO_LIMIT = 1024.0
"""Largest allocation ratio."""


class Sizes(Object, frozen=True, kw_only=True):
    """What a node has before reserved amounts and allocation ratios. ``resources``: by custom resource class."""

    vcpus: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    resources: dict[str, int] = {}

    @classmethod
    def of_node(cls, node: ComputeNode) -> Self:
        return cls(vcpus=node.vcpus, memory_mb=node.memory_mb, disk_gb=node.disk_gb, resources=_positive_amounts(node.resources))

    @property
    def amounts_by_name(self) -> dict[str, int]:
        """Every amount by name."""
        return {"vcpus": self.vcpus, "memory_mb": self.memory_mb, "disk_gb": self.disk_gb} | self.resources

    def exceeds_by(self, other: Sizes, factor: float = 1.0) -> bool:
        """Whether an amount is more than ``factor`` times the other's."""
        known = other.amounts_by_name
        return any(amount > factor * known.get(name, 0) for name, amount in self.amounts_by_name.items())

    def limited_to(self, most: Mapping[str, int]) -> Self:
        """No amount is more than in ``most``. Amounts that are missing there are 0."""
        least = {name: min(amount, most.get(name, 0)) for name, amount in self.amounts_by_name.items()}
        standard = {name: least.pop(name) for name in ALWAYS_COUNTED}
        return type(self)(**standard, resources=_positive_amounts(least))

    def describe_growth(self, counted: Sizes) -> str:
        """The amounts that are more than those a node counts with, as people read them."""
        known = counted.amounts_by_name
        more = [(name, amount, known.get(name, 0)) for name, amount in self.amounts_by_name.items() if amount > known.get(name, 0)]
        return ", ".join(f"{name} {amount} (counts {counts})" for name, amount, counts in more)


class Ratios(Object, frozen=True, kw_only=True):
    """Allocation ratios, as the conductors are configured."""

    cpu: float = 4.0
    ram: float = 1.0
    disk: float = 1.0

    @classmethod
    def of_node(cls, node: ComputeNode) -> Self:
        return cls(cpu=node.cpu_allocation_ratio, ram=node.ram_allocation_ratio, disk=node.disk_allocation_ratio)


class OwnRatios(Object, frozen=True, kw_only=True):
    """Allocation ratios of one host. None: that of the conductors' configuration."""

    cpu: float | None = None
    ram: float | None = None
    disk: float | None = None

    def over_configured(self, configured: Ratios) -> Ratios:
        """What counts."""
        own_ratios = {name: ratio for name, ratio in msgspec.structs.asdict(self).items() if ratio is not None}
        return msgspec.structs.replace(configured, **own_ratios)


class HostTerms(Object, frozen=True, kw_only=True):
    """The terms of one node. ``waiting``: the reported size that waits for an operator; None: the reported size counts."""

    accepted: Sizes
    waiting: Sizes | None = None
    ratios: OwnRatios = OwnRatios()

    def after_report(self, reported: Sizes) -> HostTerms:
        """A size that waits is not forgotten by a smaller one that is more than the accepted size."""
        waits = reported.exceeds_by(self.accepted, GROWTH_FACTOR if self.waiting is None else 1.0)
        return msgspec.structs.replace(self, waiting=reported if waits else None)

    def counted_sizes(self, reported: Sizes) -> Sizes:
        """The size that counts."""
        return reported if self.waiting is None else reported.limited_to(self.accepted.amounts_by_name)


def with_sizes(node: ComputeNode, sizes: Sizes) -> ComputeNode:
    return msgspec.structs.replace(
        node, vcpus=sizes.vcpus, memory_mb=sizes.memory_mb, disk_gb=sizes.disk_gb, resources=sizes.resources
    )


def with_ratios(node: ComputeNode, ratios: Ratios) -> ComputeNode:
    return msgspec.structs.replace(
        node, cpu_allocation_ratio=ratios.cpu, ram_allocation_ratio=ratios.ram, disk_allocation_ratio=ratios.disk
    )


def _positive_amounts(resources: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in resources.items() if amount}
