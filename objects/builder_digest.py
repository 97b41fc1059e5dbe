"""What a stranger may know of a builder: enough to compare with a builder that he knows, and not the builder."""

from __future__ import annotations

import hashlib

PREFIX = "digest:"


def digest(builder: str, instance_uuid: str) -> str:
    """Of the builder of this instance. A builder that has been made from a random id cannot be guessed from it."""
    return PREFIX + hashlib.blake2b(f"{instance_uuid} {builder}".encode(), digest_size=16).hexdigest()


def is_same(told: str | None, builder: str | None, instance_uuid: str) -> bool:
    """Whether ``told``, a builder or a digest of one, is of this builder."""
    if told == builder:
        return True
    return builder is not None and told is not None and told.startswith(PREFIX) and told == digest(builder, instance_uuid)
