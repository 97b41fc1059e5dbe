"""ImagePropertiesFilter: passes hosts that support the image's architecture, hypervisor and VM mode."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts

PROPERTIES = (("hw_architecture", "architecture"), ("img_hv_type", "hypervisor_type"), ("hw_vm_mode", "vm_mode"))
"""Image properties, each with its former name."""
ALIASES = (
    {"amd64": "x86_64", "x64": "x86_64", "i386": "i686", "i486": "i686", "i586": "i686", "arm64": "aarch64"},
    {"xapi": "xen"},
    {"pv": "xen", "hv": "hvm", "baremetal": "hvm"},
)
BOOLEANS = ("true", "false")
_PARTS = {name: part for part, (name, _) in enumerate(PROPERTIES)}
_FORMER = frozenset(old for _, old in PROPERTIES)
VERSION = "img_hv_requested_version"

_CONDITION = re.compile(r"^\s*(<=|>=|<|>|!=|==)\s*([\d.]{1,80})\s*$")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


class ImagePropertiesFilter(Filter):
    """The host's attribute ``supported_instances`` is a list of (architecture, hypervisor, VM mode). One entry must match all
    that the image names. An image that names none runs on every host; one that names any does not run on a host without the
    attribute. ``img_hv_requested_version`` (``>=6.0,<7``) is compared with ``hypervisor_version`` if the host reports that."""

    reason = "unable to run such an image"
    on_demand = True
    reads = ("image",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        properties = request.spec.image.properties if request.spec.image else {}
        if not properties and not self.settings.image_properties_default_architecture:
            return None
        expected = _expected_properties(properties, self.settings.image_properties_default_architecture)
        if not any(expected):
            return None
        mask = hosts.attribute_passes("supported_instances", self.name, lambda supported: _runs_image(supported, expected))
        version = properties.get(VERSION)
        if version:
            mask = mask & hosts.attribute_passes(
                "hypervisor_version", self.name, lambda number: not number or _satisfies_version(number, version)
            )
        return mask


def current_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of an image by their present names. A present name that the image has too replaces the former one."""
    renamed = {name: properties[old] for name, old in PROPERTIES if properties.get(old) and not properties.get(name)}
    return {name: value for name, value in properties.items() if name not in _FORMER} | renamed


def _expected_properties(properties: Mapping[str, str], default: str | None) -> list[str | None]:
    named = [current_properties(properties).get(name) for name, _ in PROPERTIES]
    named[0] = named[0] or default
    return [None if value is None else _canonical_name(part, value) for part, value in enumerate(named)]


def canonical_value(name: str, value: str) -> str:
    """The value of an image property in the one spelling of its aliases; booleans in small letters; other values as they are."""
    if name in _PARTS:
        return _canonical_name(_PARTS[name], value)
    return value.lower() if value.lower() in BOOLEANS else value


def _canonical_name(part: int, name: str) -> str:
    return ALIASES[part].get(name.lower(), name.lower())


def _runs_image(supported: Any, expected: list[str | None]) -> bool:
    if not isinstance(supported, (list, tuple)):
        return False
    for entry in supported:
        offered = (
            [_canonical_name(part, str(value)) for part, value in enumerate(entry[:3])] if isinstance(entry, (list, tuple)) else []
        )
        if all(value is None or value in offered for value in expected):
            return True
    return False


def _satisfies_version(number: int, conditions: str) -> bool:
    """``number``: the version with three digits per part, so 6001000 is 6.1.0. One that cannot be parsed is not satisfied."""
    version = (number // 1_000_000, number // 1_000 % 1_000, number % 1_000)
    for condition in conditions.split(","):
        match = _CONDITION.match(condition)
        if match is None:
            return False
        parts = [int(part) for part in match[2].split(".") if part]
        if not _OPERATORS[match[1]](version, (*parts, 0, 0, 0)[:3]):
            return False
    return True
