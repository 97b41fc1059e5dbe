"""ComputeCapabilitiesFilter: compares the flavor's extra specs with the host's attributes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from scheduler.filters.operators import matches_spec
from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts

SCOPE = "capabilities"


class ComputeCapabilitiesFilter(Filter):
    """A host must match ``capabilities:NAME``. It must match ``NAME`` without a scope only if it has this attribute.

    ``capabilities:cpu_info:arch`` looks inside an attribute, even one of JSON text. Attributes are those that the agent's driver
    reports, ``hypervisor_type`` and ``hypervisor_version``. Extra specs with other scopes are ignored.
    """

    reason = "without what the flavor wants of a host"
    on_demand = True
    applies_when = ("flavor.extra_specs",)
    reads = ("extra_specs",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        mask: Mask | None = None
        for key, expected in request.spec.flavor.extra_specs.items():
            scope, *path = key.split(":")
            if path and scope != SCOPE:
                continue
            if not path and scope not in hosts.table.facets:
                continue  # no host of the fleet has it
            name, *inner = path or [scope]
            met = hosts.attribute_passes(name, key, partial(_meets_spec, path=inner, expected=expected, absent=not path))
            mask = met if mask is None else mask & met
        return mask


def _meets_spec(value: Any, path: Sequence[str], expected: str, *, absent: bool) -> bool:
    """Whether the attribute's value matches. ``absent``: the result for a host without the attribute."""
    if value is None:
        return absent
    for step in path:
        value = _value_inside(value, step)
    return value is not None and matches_spec(str(value), expected)


def _value_inside(value: Any, step: str) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value.get(step) if isinstance(value, dict) else None
