"""Convert rows one by one: one that cannot be read is left out of its list, and its neighbours are there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from objects import stored
from objects.text import FAULT_SIZE, clean
from service.rate_limited_log import RateLimitedLog

R = TypeVar("R")
T = TypeVar("T")

UNREADABLE = (*stored.UNREADABLE, ValueError, ArithmeticError, LookupError, AttributeError)
"""What a value that no code of ours writes may raise where it is converted."""

_COMPLAINTS = RateLimitedLog(logging.getLogger(__name__))


def readable(rows: Iterable[R], convert: Callable[[R], T], what: Callable[[R], str]) -> list[T]:
    """The rows as ``convert`` has them, in order, without those that it cannot read. ``what``: the name of a row in the log."""
    found: list[T] = []
    for row in rows:
        try:
            found.append(convert(row))
        except UNREADABLE as error:
            name, reason = clean(what(row), FAULT_SIZE), clean(str(error), FAULT_SIZE)
            _COMPLAINTS(name, logging.ERROR, "%s cannot be read, and is left out: %s", name, reason)
    return found
