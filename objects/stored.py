"""Objects as JSON text, as stored in database columns."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from objects import typed

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError)
"""Errors of ``load_text`` for any invalid text, even if it is nested too deeply or not Unicode."""

_ENCODER = msgspec.json.Encoder()


def dump_value(value: Any) -> str:
    """Encode an object, or a list or tuple of objects, as JSON text."""
    return _ENCODER.encode(value).decode()


def load_text(text: str | bytes, kind: type[T]) -> T:
    """Decode text written by ``dump_value``, by this version or a newer minor one.

    Raises one of ``UNREADABLE`` for invalid text.
    """
    return typed.decode_json(text, kind)


def load_or_none(text: str | bytes | None, kind: type[T]) -> T | None:
    """Like ``load_text``, but None for empty or invalid text: one invalid row must not block the others that are read with it."""
    if not text:
        return None
    try:
        return load_text(text, kind)
    except UNREADABLE:
        return None
