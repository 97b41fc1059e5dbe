"""Digests of builders, for agents that may compare a builder with their own but must not learn it."""

from __future__ import annotations

import hashlib

PREFIX = "digest:"


def builder_digest(builder: str, instance_uuid: str) -> str:
    """The digest of this instance's builder. A builder made from a random ID cannot be guessed from it."""
    return PREFIX + hashlib.blake2b(f"{instance_uuid} {builder}".encode(), digest_size=16).hexdigest()


def is_same(reported: str | None, builder: str | None, instance_uuid: str) -> bool:
    """Whether ``reported``, a builder or a digest of one, belongs to this builder."""
    if reported == builder:
        return True
    return (
        builder is not None
        and reported is not None
        and reported.startswith(PREFIX)
        and reported == builder_digest(builder, instance_uuid)
    )
