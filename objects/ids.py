"""Ids of projects and users, which are others' to make."""

from __future__ import annotations

import re

from objects import errors

_IDENTIFIER = re.compile(r"[A-Za-z0-9._@-]{1,255}", re.ASCII)


def checked_identifier(name: str, value: str) -> str:
    """The id of a project or user. Raises errors.Invalid, saying that it is ``name``, for what can be none."""
    if not _IDENTIFIER.fullmatch(value):
        raise errors.Invalid(f"{name}: only letters, digits and . _ @ - can be used, 255 of them at most")
    return value
