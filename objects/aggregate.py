"""Aggregates: named sets of hosts. One with the metadata key ``availability_zone`` makes a zone, one with ``rack_name`` a rack."""

from __future__ import annotations

from objects.base import Object

ZONE = "availability_zone"
"""The metadata key that makes an aggregate a zone."""
RACK = "rack"
"""The metadata key that makes an aggregate a rack, or a part of one."""


class Aggregate(Object, frozen=True, kw_only=True):
    """A set of host names with metadata that filters and weighers read.

    ``created_at`` and ``updated_at``: seconds since the epoch; 0 and None if that is unknown.
    """

    id: int
    name: str
    uuid: str = ""
    hosts: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    created_at: float = 0.0
    updated_at: float | None = None

    @property
    def availability_zone(self) -> str | None:
        return self.metadata.get(ZONE)

    @property
    def rack_name(self) -> str | None:
        return self.metadata.get(RACK)
