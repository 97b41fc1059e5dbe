"""Whole numbers in query strings."""

from __future__ import annotations

from objects import errors

MAX_INTEGER = 2**31 - 1
"""The largest number that an integer column holds on every database server."""

_MAX_DIGITS = len(str(MAX_INTEGER))


def whole_number(name: str, given: str) -> int:
    """The value of the parameter ``name``; MAX_INTEGER if it is larger. Raises errors.Invalid for anything else.

    Python converts at most 4,300 digits, in time that grows with their square.
    """
    if not (given.isascii() and given.isdigit()):
        raise errors.Invalid(f"{name}: {given[:40]!r} is not a whole number of 0 or more")
    digits = given.lstrip("0")
    return min(int(digits or "0"), MAX_INTEGER) if len(digits) <= _MAX_DIGITS else MAX_INTEGER
