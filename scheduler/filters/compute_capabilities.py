"""ComputeCapabilitiesFilter: what the flavor's extra specs want of a host's attributes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from scheduler.filters.base import Filter
from scheduler.filters.operators import matches
from scheduler.plan.request import Request
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts

SCOPE = "capabilities"


class ComputeCapabilitiesFilter(Filter):
    """``capabilities:NAME`` must be met; a ``NAME`` without a scope only by hosts that have such an attribute; others are not ours.

    ``capabilities:cpu_info:arch`` looks into an attribute, also where it is JSON text. Attributes are what the agent's driver
    reports, and ``hypervisor_type`` and ``hypervisor_version``.
    """

    reason = "without what the flavor wants of a host"
    on_demand = True
    applies_when = ("flavor.extra_specs",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        mask: Mask | None = None
        for key, wanted in request.spec.flavor.extra_specs.items():
            scope, *path = key.split(":")
            if path and scope != SCOPE:
                continue
            if not path and scope not in hosts.table.facets:
                continue  # no host of the fleet has it
            name, *inner = path or [scope]
            met = hosts.judged(name, key, partial(_meets, path=inner, wanted=wanted, absent=not path))
            mask = met if mask is None else mask & met
        return mask


def _meets(value: Any, path: Sequence[str], wanted: str, *, absent: bool) -> bool:
    """``absent``: what holds of a host that does not have the attribute at all."""
    if value is None:
        return absent
    for step in path:
        value = _inside(value, step)
    return value is not None and matches(str(value), wanted)


def _inside(value: Any, step: str) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value.get(step) if isinstance(value, dict) else None
