"""Regular expressions that callers give, searched by RE2 in this process: in time that grows with the text, for any expression.

No database server searches for them: MariaDB's engine may take seconds for one name. RE2 has no look-ahead and no back references.
"""

from __future__ import annotations

import functools
from typing import Any

import re2

from objects import errors

LONGEST = 255
"""Characters of an expression: no name is longer."""

_SPECIAL = frozenset("\\.+*?()|[]{}^$")
"""Characters that are more than themselves in an expression."""
_MEMORY = 1 << 20
"""Bytes that a compiled expression may take."""


def check(pattern: str, what: str) -> None:
    """Raise ``errors.Invalid`` unless it is an expression; ``what`` is the parameter it came in."""
    if len(pattern) > LONGEST:
        raise errors.Invalid(f"{what}: is too long, {LONGEST} is the most")
    try:
        _compiled(pattern)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        raise errors.Invalid(f"{what}: is not a regular expression: {reason}") from error


def literal(pattern: str) -> str:
    """Text that every match of the expression holds: all of it, but for anchors, if it is plain text; else empty."""
    text = pattern.removeprefix("^").removesuffix("$")
    return "" if _SPECIAL.intersection(text) else text


def is_found(pattern: str, text: str | None) -> bool:
    """Whether the expression, which ``check`` has passed, is found anywhere in the text."""
    return text is not None and _compiled(pattern).search(text) is not None


@functools.lru_cache(maxsize=64)
def _compiled(pattern: str) -> Any:  # the library has no types
    options = re2.Options()
    options.log_errors = False  # the library would write to the process's standard error
    options.max_mem = _MEMORY
    return re2.compile(pattern, options)
