"""Custom resource classes of the host table: columns that are there once a host has any of the class."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from scheduler.table.arrays import Floats, Ints

Amounts = Mapping[str, int]
"""By the names of classes."""

NONE: Amounts = MappingProxyType({})
Rows = Ints | int | slice


class ResourceClass:
    """One class: how much of it each host has, what is claimed (a plan's own takings included), and what its agent counts.

    ``unaccounted`` is how much more that is than what is claimed: guests that nobody else knows of.
    """

    def __init__(self, room: int) -> None:
        self.cap, self.claimed, self.reported, self.unaccounted = (np.zeros(room) for _ in range(4))

    def free(self, rows: Ints | slice) -> Floats:
        """What is left there; negative on an over-full host."""
        free: Floats = self.cap[rows] - self.claimed[rows] - self.unaccounted[rows]
        return free

    def account_later(self, row: int) -> bool:
        """The same as far as the agent counts less than before; whether it counts more, which is to be seen later."""
        beyond = max(self.reported.item(row) - self.claimed.item(row), 0.0)
        before = self.unaccounted.item(row)
        self.unaccounted[row] = min(beyond, before)
        return beyond > before

    def account(self, rows: Rows) -> None:
        """Compare the agents' counts with the claims, as they are now."""
        self.unaccounted[rows] = np.maximum(self.reported[rows] - self.claimed[rows], 0.0)

    def grow(self, size: int) -> None:
        """Make room for so many rows."""
        if size <= self.cap.size:
            return
        more = np.zeros(max(size, 2 * self.cap.size) - self.cap.size)
        for name in ("cap", "claimed", "reported", "unaccounted"):
            setattr(self, name, np.concatenate((getattr(self, name), more)))


class Classes(dict[str, ResourceClass]):
    """All classes that any host has had, by name. Used by the table that they belong to, under its lock."""

    def report(self, row: int, used: Amounts, *, first: bool = True) -> bool:
        """What the agent of the host in this row counts as used.

        After its ``first`` report, whether that is more than is accounted for: it counts when the rows are settled.
        """
        more = False
        for name, each in self._of(row, used):
            each.reported[row] = used.get(name, 0)
            if first:
                each.account(row)
            else:
                more |= each.account_later(row)
        return more

    def enter(self, row: int, cap: Amounts, claimed: Amounts, *, first: bool) -> None:
        """What the ledger says of the host in this row. ``first``: it says so for the first time."""
        for name, each in self._of(row, cap, claimed):
            each.cap[row], each.claimed[row] = cap.get(name, 0), claimed.get(name, 0)
            if first:
                each.account(row)

    def forget(self, row: int) -> None:
        """The row is no host's any more."""
        self.enter(row, NONE, NONE, first=False)
        self.report(row, NONE)

    def settle(self, rows: Ints) -> Ints:
        """Account for these hosts anew; returns those for which that made a difference."""
        moved = np.zeros(rows.size, np.bool_)
        for each in self.values():
            each.grow(int(rows.max(initial=-1)) + 1)
            before = each.unaccounted[rows]
            each.account(rows)
            moved |= each.unaccounted[rows] != before
        return rows[moved]

    def take(self, row: int, amounts: Amounts) -> None:
        for name, each in self._of(row, amounts):
            each.claimed[row] += amounts.get(name, 0)

    def give_back(self, row: int, amounts: Amounts) -> None:
        """Exactly what was taken: these are whole numbers."""
        for name, each in self._of(row, amounts):
            each.claimed[row] -= amounts.get(name, 0)

    def free_on(self, row: int) -> dict[str, float]:
        """What is free on the host in this row, of the classes that it has."""
        return {name: float(each.free(slice(row, row + 1))[0]) for name, each in self._of(row) if each.cap[row]}

    def _of(self, row: int, *named: Amounts) -> list[tuple[str, ResourceClass]]:
        """Every class, those included that are named for the first time, with room for this row."""
        if not self and not any(named):
            return []
        for names in named:
            for name in names:
                if name not in self:
                    self[name] = ResourceClass(row + 1)
        for each in self.values():
            each.grow(row + 1)
        return list(self.items())
