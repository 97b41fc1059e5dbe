"""Objects as JSON text, the way they are kept in database columns."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from objects import typed

T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()


def dump(value: Any) -> str:
    """Encode an object, or a list or tuple of objects, as JSON text."""
    return _ENCODER.encode(value).decode()


def load(text: str | bytes, kind: type[T]) -> T:
    """Decode text written by ``dump``, by this version or a newer minor one.

    Raises ``msgspec.ValidationError`` for text that is no such object.
    """
    return typed.decode(text, kind)
