"""Objects as JSON text, the way they are kept in database columns."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from objects import typed

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError)
"""What ``load`` raises for text that is no such object, whatever the text: also where it is too deep, or no Unicode."""

_ENCODER = msgspec.json.Encoder()


def dump(value: Any) -> str:
    """Encode an object, or a list or tuple of objects, as JSON text."""
    return _ENCODER.encode(value).decode()


def load(text: str | bytes, kind: type[T]) -> T:
    """Decode text written by ``dump``, by this version or a newer minor one.

    Raises one of ``UNREADABLE`` for text that is no such object.
    """
    return typed.decode(text, kind)


def load_or_none(text: str | bytes | None, kind: type[T]) -> T | None:
    """The same; None for no text, and for text that is no such object: where one odd row must not hold up what is read with it."""
    if not text:
        return None
    try:
        return load(text, kind)
    except UNREADABLE:
        return None
