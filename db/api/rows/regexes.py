"""Regular expressions from API callers. RE2 searches for them in this process, in time linear in the text for any expression.

The database does not search for them, because MariaDB's engine may take seconds for one name. RE2 has no look-ahead and no back
references.
"""

from __future__ import annotations

import functools
from typing import Any

import re2

from objects import errors

LENGTH_LIMIT = 255
"""Maximum length of an expression in characters. No name is longer."""

_SPECIAL = frozenset("\\.+*?()|[]{}^$")
"""Characters with a special meaning in an expression."""
_MEMORY_BYTES = 1 << 20
"""Maximum size of a compiled expression in bytes."""


def check_pattern(pattern: str, parameter: str) -> None:
    """Raise ``errors.Invalid`` unless this is a valid expression. ``parameter``: the name of the request's parameter."""
    if len(pattern) > LENGTH_LIMIT:
        raise errors.Invalid(f"{parameter}: is too long, the limit is {LENGTH_LIMIT} characters")
    try:
        _compile_pattern(pattern)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        raise errors.Invalid(f"{parameter}: is not a regular expression: {reason}") from error


def literal_part(pattern: str) -> str:
    """Text that every match contains: the expression without anchors if it is plain text, else an empty string."""
    text = pattern.removeprefix("^").removesuffix("$")
    return "" if _SPECIAL.intersection(text) else text


def is_found(pattern: str, text: str | None) -> bool:
    """Whether the expression, which passed ``check_pattern``, is found anywhere in a line of the text."""
    return text is not None and any(_compile_pattern(pattern).search(line) is not None for line in text.split("\n"))


@functools.lru_cache(maxsize=64)
def _compile_pattern(pattern: str) -> Any:  # the library has no types
    options = re2.Options()
    options.log_errors = False  # the library would write to the process's standard error
    options.max_mem = _MEMORY_BYTES
    return re2.compile(pattern, options)
