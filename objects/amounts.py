"""What one server takes of a host: of the three things every host has, and of custom resource classes."""

from __future__ import annotations

from collections.abc import Mapping

from objects.base import Object

STANDARD = ("VCPU", "MEMORY_MB", "DISK_GB")
"""Placement's names of what every host offers: virtual CPUs, MiB, GiB."""


class Amounts(Object, frozen=True, kw_only=True):
    """vCPUs, MiB, GiB, and by their names the custom resource classes of which anything is taken."""

    vcpus: int
    memory_mb: int
    disk_gb: int
    resources: dict[str, int] = {}

    @classmethod
    def of(cls, vcpus: int, memory_mb: int, disk_gb: int, asked: Mapping[str, int]) -> Amounts:
        """Of a server of this size. ``asked`` are amounts by resource class: a standard one takes the place of the size's."""
        if not asked:
            return cls(vcpus=vcpus, memory_mb=memory_mb, disk_gb=disk_gb)
        return cls(
            vcpus=asked.get("VCPU", vcpus),
            memory_mb=asked.get("MEMORY_MB", memory_mb),
            disk_gb=asked.get("DISK_GB", disk_gb),
            resources={name: amount for name, amount in asked.items() if name not in STANDARD},
        )
