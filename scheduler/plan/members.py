"""Where the members of one server group are, or are about to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from objects.inventory import Slot


class Members:
    """Counts of a group's members per host, those held for retries apart. Host names are compared without case."""

    def __init__(self, slots: Iterable[Slot] = ()) -> None:
        self._placed: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._own_placed: Counter[str] = Counter()
        self._own_held: Counter[str] = Counter()
        for slot in slots:
            (self._held if slot.held else self._placed)[slot.host.lower()] += 1

    def without(self, own: Iterable[Slot]) -> Members:
        """The same members as who places ``own`` anew sees them: these slots, which are among them, do not count for it.

        What is added to one of the two is seen in the other.
        """
        view = Members()
        view._placed, view._held = self._placed, self._held
        for slot in own:
            (view._own_held if slot.held else view._own_placed)[slot.host.lower()] += 1
        return view

    def copy(self) -> Members:
        """As they are now, apart from what becomes of these."""
        other = Members()
        other._placed, other._held = self._placed.copy(), self._held.copy()
        other._own_placed, other._own_held = self._own_placed, self._own_held
        return other

    def restore(self, other: Members) -> None:
        """Be as ``other`` again, a copy made before; so is whoever shares these counts."""
        for mine, before in ((self._placed, other._placed), (self._held, other._held)):
            mine.clear()
            mine.update(before)

    def counts(self, *, with_held: bool) -> dict[str, int]:
        """Members per host (lower case), as far as there are any."""
        counts = dict(self._placed - self._own_placed) if self._own_placed else dict(self._placed)
        if with_held:
            for host, count in (self._held - self._own_held).items():
                counts[host] = counts.get(host, 0) + count
        return counts

    def add(self, host: str) -> None:
        self._placed[host.lower()] += 1

    def hold(self, host: str) -> None:
        """One of them has the host as an alternate, which is kept free for it."""
        self._held[host.lower()] += 1

    @property
    def any_held(self) -> bool:
        return bool(self._held - self._own_held)


NOBODY = Members()
"""The members of no group, shared by all requests without one: nobody is ever added."""
