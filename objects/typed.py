"""Decode data into typed objects, safely even if several threads use a type for the first time at once.

msgspec 0.22.0 builds a struct's description on first use and lets other threads see a partial one, which crashes the process
(segmentation fault). Therefore one thread at a time prepares a type here, and everything decodes through this module.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_LEARNING = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode_json(text: str | bytes | msgspec.Raw, kind: type[T]) -> T:
    """JSON as an object of ``kind``. Raises ``msgspec.ValidationError`` or ``msgspec.DecodeError``."""
    decoded: T = _decoder_of(kind).decode(text)
    return decoded


def convert_data(value: object, kind: type[T]) -> T:
    """Plain data (dicts, lists, numbers, text) as an object of ``kind``. Raises ``msgspec.ValidationError``."""
    _decoder_of(kind)
    return msgspec.convert(value, kind)


def _decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    decoder = _decoders.get(kind)
    if decoder is None:
        with _LEARNING:
            decoder = _decoders.get(kind)
            if decoder is None:
                decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder
