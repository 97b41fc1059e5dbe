"""Counts of waiting items by name."""

from __future__ import annotations

from objects.base import Object


class WaitingCount(Object, frozen=True, kw_only=True):
    """The number of items waiting under a name, and since when the oldest has waited, in seconds since the epoch. An empty name
    stands for all items that are not listed by name.
    """

    name: str
    count: int
    oldest: float
