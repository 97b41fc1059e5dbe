"""Standard extra specs of flavors, in Placement's syntax: ``resources:CLASS`` and ``trait:NAME``.

Filters define others, such as ``capabilities:``, themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from objects import errors
from objects.amounts import STANDARD
from objects.base import INT32_MAX

Specs = Mapping[str, str]

RESOURCES = "resources:"
TRAIT = "trait:"
REQUIRED = "required"
FORBIDDEN = "forbidden"

RESOURCE_CLASS_LENGTH = 255
"""Maximum characters in the name of a resource class."""

NOT_OFFERED = {
    "pci_passthrough:": "devices of hosts are not given to guests",
    "accel:": "there are no accelerators",
    "hw:pmem": "there is no persistent memory",
    "hw:cpu_dedicated_mask": "the CPUs of a guest are all shared or all dedicated (hw:cpu_policy)",
    "group_policy": "there are no groups of resources",
    "same_subtree": "there are no groups of resources",
}
"""Beginnings of keys that Nova places by and nothing here does, each with the reason."""

_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]+")
_GROUP = re.compile(r"(resources|trait)[^:]+:")
_WHOLE = re.compile(r"[0-9]{1,10}")


def check_specs(specs: Specs) -> None:
    """Raise Invalid for an invalid resource class or trait and for what is not offered; the message begins with the key."""
    for key, value in specs.items():
        if key.startswith(RESOURCES):
            _parse_amount(key, value)
        elif key.startswith(TRAIT):
            _check_trait(key, value, (REQUIRED, FORBIDDEN))
        elif _GROUP.match(key):
            kind = key[: key.index(":")]
            raise errors.Invalid(f"{key[:80]}: there are no groups such as {kind[:40]!r}; use {RESOURCES}CLASS and {TRAIT}NAME")
        for name, why in NOT_OFFERED.items():
            if key.startswith(name):
                raise errors.Invalid(f"{key[:80]}: is not offered: {why}; remove it from the flavor")


def check_image(properties: Specs) -> None:
    """The same for the properties of an image, which can only require traits."""
    for key, value in properties.items():
        if key.startswith(TRAIT):
            _check_trait(key, value, (REQUIRED,))


def check_offer(resources: Mapping[str, int]) -> None:
    """Raise Invalid for custom resource classes or amounts that a host cannot offer; the message begins with the name."""
    for name, amount in resources.items():
        if not _is_custom(name):
            raise errors.Invalid(f"{name[:80]}: is not a custom resource class; their names are CUSTOM_ and then A-Z, 0-9 and _")
        if not 0 <= amount <= INT32_MAX:
            raise errors.Invalid(f"{name[:80]}: {amount} is not a whole number from 0 to {INT32_MAX}")


def resource_amounts(specs: Specs) -> dict[str, int]:
    """Amounts by resource class; invalid ones are ignored."""
    amounts: dict[str, int] = {}
    for key, value in specs.items():
        if key.startswith(RESOURCES):
            with suppress(errors.Invalid):
                amounts[key.removeprefix(RESOURCES)] = _parse_amount(key, value)
    return amounts


def _parse_amount(key: str, value: str) -> int:
    name = key.removeprefix(RESOURCES)
    if name not in STANDARD and not _is_custom(name):
        known = ", ".join(STANDARD)
        raise errors.Invalid(
            f"{key[:80]}: there is no resource class {name[:80]!r}; use {known}, or a custom one: CUSTOM_ and then A-Z, 0-9 and _"
        )
    least = 0 if name in STANDARD else 1
    amount = int(value) if _WHOLE.fullmatch(value) else -1
    if not least <= amount <= INT32_MAX:
        raise errors.Invalid(f"{key[:80]}: {value[:40]!r} is not a whole number from {least} to {INT32_MAX}")
    return amount


def _is_custom(name: str) -> bool:
    return len(name) <= RESOURCE_CLASS_LENGTH and _CUSTOM.fullmatch(name) is not None


def _check_trait(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if not key.removeprefix(TRAIT):
        raise errors.Invalid(f"{key}: does not name a trait; use {TRAIT}NAME")
    if value not in allowed:
        raise errors.Invalid(f"{key[:80]}: {value[:40]!r} is not {' or '.join(allowed)}")
