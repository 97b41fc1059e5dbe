"""Names and texts in the few administrative statements that are sent through the servers' own clients."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def checked_name(text: str) -> str:
    """The text, if it may stand as the name of a database or user. Raises ValueError."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"'{text}' cannot name a database or user here: letters, digits and underscores, at most 63")
    return text


def quote_text(value: str, backslash: bool) -> str:
    """The text as a literal; ``backslash`` says whether the server takes that character as an escape."""
    if "\n" in value or "\0" in value:
        raise ValueError("A line end or a null byte cannot be part of a password")
    value = value.replace("\\", "\\\\") if backslash else value
    return "'" + value.replace("'", "''") + "'"
