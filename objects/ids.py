"""IDs of projects and users, which other services assign."""

from __future__ import annotations

import re

from objects import errors

_IDENTIFIER = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._@-]{1,255}", re.ASCII)


def checked_identifier(name: str, value: str) -> str:
    """The ID of a project or user. Raises errors.Invalid with ``name`` if it is not a valid one."""
    if not _IDENTIFIER.fullmatch(value):
        raise errors.Invalid(f"{name}: may have only letters, digits and . _ @ -, at most 255, and is not . or ..")
    return value
