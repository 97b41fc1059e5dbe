"""Digests of builders, for agents that may compare a builder with their own but must not learn it."""

from __future__ import annotations

import hashlib

PREFIX = "digest:"


def digest(builder: str, instance_uuid: str) -> str:
    """The digest of this instance's builder. A builder made from a random ID cannot be guessed from it."""
    return PREFIX + hashlib.blake2b(f"{instance_uuid} {builder}".encode(), digest_size=16).hexdigest()


def is_same(told: str | None, builder: str | None, instance_uuid: str) -> bool:
    """Whether ``told``, a builder or a digest of one, belongs to this builder."""
    if told == builder:
        return True
    return builder is not None and told is not None and told.startswith(PREFIX) and told == digest(builder, instance_uuid)
