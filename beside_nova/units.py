"""PlacementUnitsFilter: what Placement asks of an amount beside room for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from beside_nova.engine import Filter, Hosts, Mask, Request

ATTRIBUTE = "placement_units"
"""The attribute of a host that has, by resource class, the least, the most and the step of what one server may take."""


class PlacementUnitsFilter(Filter):
    """An inventory has ``min_unit``, ``max_unit`` and ``step_size``. With an allocation ratio above 1 a host has more room than one
    server may take of it: Nova sets ``max_unit`` to what the host really has."""

    reason = "one server may not take such an amount there (max_unit, min_unit or step_size of the inventory)"
    guards_host = True
    reads = ("amounts", "resources")

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        standard = {"VCPU": request.vcpus, "MEMORY_MB": request.memory_mb, "DISK_GB": request.disk_gb}
        amounts = {name: amount for name, amount in (standard | dict(request.resources)).items() if amount}

        def units_suit(units: Any) -> bool:
            return isinstance(units, Mapping) and all(_amount_suits(amount, units.get(name)) for name, amount in amounts.items())

        return hosts.attribute_passes(ATTRIBUTE, (self.name, *sorted(amounts.items())), units_suit)


def _amount_suits(amount: int, units: Any) -> bool:
    if units is None:
        return False  # the host has no such inventory
    least, most, step = units
    return bool(least <= amount <= most and amount % max(step, 1) == 0)
