"""The hosts of the members of one server group, including members that are being placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from objects.inventory import Slot


class Members:
    """Counts of a group's members per host, and separately of slots held for retries. Host names are case-insensitive.

    ``moving``: how many of them have two places, or are about to have none.
    """

    def __init__(self, slots: Iterable[Slot] = ()) -> None:
        self._placed: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._own_placed: Counter[str] = Counter()
        self._own_held: Counter[str] = Counter()
        self.moving = 0
        for slot in slots:
            (self._held if slot.held else self._placed)[slot.host.lower()] += 1
            self.moving += slot.moving

    def without(self, own: Iterable[Slot]) -> Members:
        """A view of the same members that does not count the slots ``own``. They must be among them.

        The view shares its counts with the original: what is added to one is seen in the other.
        """
        view = Members()
        view._placed, view._held, view.moving = self._placed, self._held, self.moving
        for slot in own:
            (view._own_held if slot.held else view._own_placed)[slot.host.lower()] += 1
            view.moving -= slot.moving
        return view

    def copy(self) -> Members:
        """An independent copy of the counts."""
        other = Members()
        other._placed, other._held = self._placed.copy(), self._held.copy()
        other._own_placed, other._own_held, other.moving = self._own_placed, self._own_held, self.moving
        return other

    def restore(self, other: Members) -> None:
        """Set the counts back to ``other``, a copy made before. This also changes the views that share these counts."""
        for mine, before in ((self._placed, other._placed), (self._held, other._held)):
            mine.clear()
            mine.update(before)

    def counts(self, *, with_held: bool) -> dict[str, int]:
        """Members per host name in lower case; hosts without members are absent."""
        counts = dict(self._placed - self._own_placed) if self._own_placed else dict(self._placed)
        if with_held:
            for host, count in (self._held - self._own_held).items():
                counts[host] = counts.get(host, 0) + count
        return counts

    def add(self, host: str) -> None:
        self._placed[host.lower()] += 1

    def hold(self, host: str) -> None:
        """Count a slot that is held on the host, because the host is an alternate of a member."""
        self._held[host.lower()] += 1

    @property
    def any_held(self) -> bool:
        return bool(self._held - self._own_held)


NOBODY = Members()
"""Shared by all requests without a group. Nothing is ever added to it."""
