"""The common base of everything that is stored as JSON or crosses the bus."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

INT32_MAX = 2**31 - 1
"""The largest number that an integer column holds on every server."""
INT64_MAX = 2**63 - 1

Number = Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
"""A whole number that every database can hold."""


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen record. Unknown fields are ignored on decoding, so a newer minor version may add fields with defaults."""


class Message(Object, frozen=True, kw_only=True):
    """A record that crosses the bus or is stored, under a name (its class name) and a version.

    ``VERSION`` is ``major.minor``: a newer minor only adds fields with defaults, a newer major is refused by the reader.
    ``tests/unit/rpc`` keeps a fingerprint of every message, so a field cannot change without its version.
    """

    VERSION: ClassVar[str] = "1.0"
