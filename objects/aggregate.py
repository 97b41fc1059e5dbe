"""Aggregates: named sets of hosts. One with the metadata key ``availability_zone`` makes a zone."""

from __future__ import annotations

from objects.base import Object


class Aggregate(Object, frozen=True, kw_only=True):
    """A set of host names with metadata that filters and weighers read."""

    id: int
    name: str
    hosts: tuple[str, ...] = ()
    metadata: dict[str, str] = {}

    @property
    def availability_zone(self) -> str | None:
        return self.metadata.get("availability_zone")
