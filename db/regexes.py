"""Regular expressions that callers give: looked for in time that grows with the text only, whatever the expression.

A database searches for them in every name it lists. Python's own engine, by which SQLite would do that, may take years for a
short expression and lets no other thread run meanwhile. So expressions are of the kind that RE2 reads, which has no look-ahead and
no back references, and SQLite searches by RE2.
"""

from __future__ import annotations

import functools
import sqlite3
from typing import Any

import re2

from db import retry
from objects import errors

LONGEST = 255
"""Characters of an expression: no name is longer."""

_MEMORY = 1 << 20
"""Bytes that a compiled expression may take."""
_MARIADB_REFUSES = 1139
_POSTGRESQL_REFUSES = "2201B"


def check(pattern: str, what: str) -> None:
    """Raise ``errors.Invalid`` unless it is an expression; ``what`` is the parameter it came in."""
    if len(pattern) > LONGEST:
        raise errors.Invalid(f"{what}: is too long, {LONGEST} is the most")
    try:
        _compiled(pattern)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        raise errors.Invalid(f"{what}: is not a regular expression: {reason}") from error


def teach(connection: sqlite3.Connection) -> None:
    """Make SQLite's REGEXP search by RE2."""
    connection.create_function("regexp", 2, _found, deterministic=True)


def is_refusal(error: BaseException) -> bool:
    """Whether a server's error says that it cannot, or will not, search for an expression: each reads a dialect of its own."""
    refused = retry.cause(error)
    return getattr(refused, "sqlstate", None) == _POSTGRESQL_REFUSES or _MARIADB_REFUSES in refused.args[:1]


def _found(pattern: str, text: str | None) -> bool:
    return text is not None and _compiled(pattern).search(text) is not None


@functools.lru_cache(maxsize=64)
def _compiled(pattern: str) -> Any:  # the library has no types
    options = re2.Options()
    options.log_errors = False  # the library would write to the process's standard error
    options.max_mem = _MEMORY
    return re2.compile(pattern, options)
