"""Flavors: named sizes."""

from __future__ import annotations

import re

import msgspec

from objects import errors, extra_specs, text
from objects.amounts import Amounts
from objects.base import INT32_MAX, Object

EXTRA_SPECS_LIMIT = 128
"""Extra specs that a flavor may have: each server keeps a copy."""

DESCRIPTION_LENGTH = 65535
"""Characters, and bytes of UTF-8, that a description may have."""

RXTX_FACTOR_MAX = 3.40282e38
"""The largest bandwidth factor, as in the Compute API."""

EXTRA_SPEC_LENGTH = 255
"""Characters that the key and the value of an extra spec may have."""

_ID = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]([a-zA-Z0-9. _-]{0,253}[a-zA-Z0-9._-])?", re.ASCII)
_KEY = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9_:. -]{1,255}", re.ASCII)
"""Neither is a dot segment, as both stand in paths."""


class Flavor(Object, frozen=True, kw_only=True):
    """A size a server can have. Memory in MiB, disk in GiB, swap in MiB. ``rxtx_factor`` is kept and shown only."""

    flavor_id: str
    name: str
    vcpus: int
    memory_mb: int
    root_gb: int = 0
    ephemeral_gb: int = 0
    swap_mb: int = 0
    is_public: bool = True
    disabled: bool = False
    description: str | None = None
    extra_specs: dict[str, str] = {}
    rxtx_factor: float = 1.0

    @property
    def disk_gb(self) -> int:
        """Local disk that a server of this flavor takes, in GiB, with swap rounded up."""
        return self.root_gb + self.ephemeral_gb + -(-self.swap_mb // 1024)

    @property
    def taken_amounts(self) -> Amounts:
        """The resources that a server of this flavor takes: its size and the ``resources:CLASS`` of its extra specs."""
        return Amounts.of_size(self.vcpus, self.memory_mb, self.disk_gb, extra_specs.resource_amounts(self.extra_specs))

    def of_a_server(self) -> Flavor:
        """The copy that a server keeps: without the description and the bandwidth factor, which nobody reads there."""
        return msgspec.structs.replace(self, description=None, rxtx_factor=1.0)


def check_flavor(flavor: Flavor) -> None:
    """Raise Invalid, beginning with the name of the field, for a flavor that servers could not be made of.

    Both the API and the command line call this before they store a flavor.
    """
    if not _ID.fullmatch(flavor.flavor_id):
        allowed = "letters, digits, spaces and . _ -, or is . or .."
        raise errors.Invalid(f"id: {flavor.flavor_id[:80]!r} has other characters than {allowed}")
    if not 1 <= len(flavor.name) <= text.NAME_LENGTH or not flavor.name.isprintable() or flavor.name != flavor.name.strip():
        raise errors.Invalid(f"name: {flavor.name[:80]!r} is not 1 to {text.NAME_LENGTH} printable characters without outer spaces")
    for field, least in (("vcpus", 1), ("memory_mb", 1), ("root_gb", 0), ("ephemeral_gb", 0), ("swap_mb", 0)):
        if not least <= getattr(flavor, field) <= INT32_MAX:
            raise errors.Invalid(f"{field}: {getattr(flavor, field)} is not a whole number from {least} to {INT32_MAX}")
    if not 0 < flavor.rxtx_factor <= RXTX_FACTOR_MAX:
        raise errors.Invalid(f"rxtx_factor: {flavor.rxtx_factor:g} is not a number above 0 and up to {RXTX_FACTOR_MAX:g}")
    if flavor.description is not None and len(flavor.description.encode(errors="replace")) > DESCRIPTION_LENGTH:
        raise errors.Invalid(f"description: is longer than {DESCRIPTION_LENGTH} bytes of UTF-8")
    check_specs(flavor.extra_specs)


def check_specs(specs: dict[str, str]) -> None:
    """The same for the extra specs of a flavor alone."""
    if len(specs) > EXTRA_SPECS_LIMIT:
        raise errors.Invalid(f"extra_specs: a flavor has at most {EXTRA_SPECS_LIMIT}")
    for key, value in specs.items():
        if not _KEY.fullmatch(key):
            raise errors.Invalid(
                f"{key[:80]!r}: a key has 1 to {EXTRA_SPEC_LENGTH} letters, digits, spaces and . _ : -, and is not . or .."
            )
        if len(value) > EXTRA_SPEC_LENGTH or not text.is_safe(value):
            raise errors.Invalid(f"{key[:80]}: a value has at most {EXTRA_SPEC_LENGTH} characters and no control characters")
    extra_specs.check_specs(specs)
