"""The resources that one server takes of a host: vCPUs, memory, disk, and custom resource classes."""

from __future__ import annotations

from collections.abc import Mapping

from objects.base import Object

STANDARD = ("VCPU", "MEMORY_MB", "DISK_GB")
"""Placement's names of the resources that every host offers: virtual CPUs, MiB, GiB."""


class Amounts(Object, frozen=True, kw_only=True):
    """vCPUs, MiB, GiB; ``resources``: amounts by custom resource class."""

    vcpus: int
    memory_mb: int
    disk_gb: int
    resources: dict[str, int] = {}

    @classmethod
    def of_size(cls, vcpus: int, memory_mb: int, disk_gb: int, resource_amounts: Mapping[str, int]) -> Amounts:
        """The amounts for a server of this size. ``resource_amounts``: amounts by resource class; a standard class overrides the
        size's value.
        """
        if not resource_amounts:
            return cls(vcpus=vcpus, memory_mb=memory_mb, disk_gb=disk_gb)
        return cls(
            vcpus=resource_amounts.get("VCPU", vcpus),
            memory_mb=resource_amounts.get("MEMORY_MB", memory_mb),
            disk_gb=resource_amounts.get("DISK_GB", disk_gb),
            resources={name: amount for name, amount in resource_amounts.items() if name not in STANDARD},
        )
