"""What waits, as counts by name."""

from __future__ import annotations

from objects.base import Object


class WaitingCount(Object, frozen=True, kw_only=True):
    """How many wait under a name, and since when the oldest does, in seconds since the epoch. No name: those that are not told."""

    name: str
    count: int
    oldest: float
