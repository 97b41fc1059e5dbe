"""The hosts of the members of one server group, including members that are being placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from objects.inventory import Slot
from scheduler.table.arrays import Ints
from scheduler.table.named_rows import NamedRows, lowered


@dataclass(slots=True)
class _Column:
    """``counts`` by row, as they are after so many ``changes``."""

    counts: Ints
    changes: int
    with_held: bool
    named: NamedRows


class Members:
    """Counts of a group's members per host, and separately of slots held for retries. Host names are case-insensitive.

    ``moving``: how many of them have two places, or are about to have none.
    """

    def __init__(self, slots: Collection[Slot] = ()) -> None:
        held = [slot for slot in slots if slot.held]
        placed = [slot for slot in slots if not slot.held] if held else slots
        self._placed, self._held = _counted(placed), _counted(held)
        self._in_domains = Counter((slot.fault_domain, slot.host.lower()) for slot in slots if slot.fault_domain is not None)
        self._own_placed: Counter[str] = Counter()
        self._own_held: Counter[str] = Counter()
        self._own_in_domains: Counter[tuple[str, str]] = Counter()
        self.moving = len([slot for slot in slots if slot.moving])
        self._changes = [0]  # how often members were added; shared with the views
        self._column: _Column | None = None

    def without(self, own: Iterable[Slot]) -> Members:
        """A view of the same members that does not count the slots ``own``. They must be among them.

        The view shares its counts with the original: what is added to one is seen in the other.
        """
        view = Members()
        view._placed, view._held, view._changes, view.moving = self._placed, self._held, self._changes, self.moving
        view._in_domains = self._in_domains
        for slot in own:
            if slot.fault_domain is not None:
                view._own_in_domains[slot.fault_domain, slot.host.lower()] += 1
            (view._own_held if slot.held else view._own_placed)[slot.host.lower()] += 1
            view.moving -= slot.moving
        return view

    def copy(self) -> Members:
        """An independent copy of the counts."""
        other = Members()
        other._placed, other._held, other._in_domains = self._placed.copy(), self._held.copy(), self._in_domains.copy()
        other._own_placed, other._own_held, other.moving = self._own_placed, self._own_held, self.moving
        other._own_in_domains = self._own_in_domains
        return other

    def restore(self, other: Members) -> None:
        """Set the counts back to ``other``, a copy made before. This also changes the views that share these counts."""
        self._changes[0] += 1
        self._placed.clear()
        self._placed.update(other._placed)
        self._held.clear()
        self._held.update(other._held)
        self._in_domains.clear()
        self._in_domains.update(other._in_domains)

    def counts(self, *, with_held: bool) -> dict[str, int]:
        """Members per host name in lower case; hosts without members are absent."""
        counts = dict(self._placed - self._own_placed) if self._own_placed else dict(self._placed)
        if with_held:
            for host, count in (self._held - self._own_held).items():
                counts[host] = counts.get(host, 0) + count
        return counts

    def count(self, host: str) -> int:
        """Members and held slots on one host."""
        return self.of_hosts((host,), with_held=True)[0]

    def of_hosts(self, hosts: Iterable[str], *, with_held: bool) -> list[int]:
        """How many members each of these hosts has."""
        names = list(map(str.lower, hosts))
        counts = _less(self._placed, self._own_placed, names)
        if not (with_held and self._held):
            return counts
        return list(map(int.__add__, counts, _less(self._held, self._own_held, names)))

    def rows(self, named: NamedRows, least: int, *, with_held: bool) -> Ints:
        """The rows, in order, of the hosts with at least so many members."""
        counts: Mapping[str, int] = self.counts(with_held=with_held)
        hosts: Collection[str] = counts if least == 1 else [host for host, count in counts.items() if count >= least]
        found, _ = named.of(hosts)
        found.sort()
        return found

    def of_rows(self, named: NamedRows, rows: Ints, *, with_held: bool) -> Ints:
        """How many members the host of each of these rows has."""
        theirs, counts = self._placed_rows(named, with_held=with_held)
        if not theirs.size:
            return np.zeros(rows.size, np.int64)
        order = theirs.argsort()
        nearest = order[np.minimum(np.searchsorted(theirs, rows, sorter=order), theirs.size - 1)]
        return np.where(theirs[nearest] == rows, counts[nearest], 0)

    def by_row(self, named: NamedRows, size: int, *, with_held: bool) -> Ints:
        """The same for each of ``size`` rows. Not to be written to."""
        column = self._column
        if column is None or (column.changes, column.counts.size, column.with_held) != (self._changes[0], size, with_held):
            rows, counts = self._placed_rows(named, with_held=with_held)
            by_row = np.zeros(size, dtype=np.int64)
            by_row[rows] = counts
            self._column = column = _Column(by_row, self._changes[0], with_held, named)
        return column.counts

    def _placed_rows(self, named: NamedRows, *, with_held: bool) -> tuple[Ints, Ints]:
        """The rows of all hosts with members, and how many these have."""
        counts = self.counts(with_held=with_held)
        rows, positions = named.of(counts)
        return rows, np.fromiter(counts.values(), np.int64, len(counts))[positions]

    def _one_more(self, host: str, *, held: bool) -> None:
        (self._held if held else self._placed)[host] += 1
        column, known = self._column, self._changes[0]
        self._changes[0] += 1
        if column is not None and column.changes == known and (column.with_held or not held):
            column.counts[column.named.of((host,))[0]] += 1
            column.changes += 1

    def of_other_domains(self, fault_domain: str) -> set[str]:
        """The hosts, in lower case, of members of other fault domains. Members of none are of no other."""
        return {host for (domain, host), count in (self._in_domains - self._own_in_domains).items() if domain != fault_domain}

    def add(self, host: str, fault_domain: str | None = None) -> None:
        self._one_more(host.lower(), held=False)
        if fault_domain is not None:
            self._in_domains[fault_domain, host.lower()] += 1

    def hold(self, host: str) -> None:
        """Count a slot that is held on the host, because the host is an alternate of a member."""
        self._one_more(host.lower(), held=True)

    @property
    def any_held(self) -> bool:
        return bool(self._held - self._own_held)


def _counted(slots: Collection[Slot]) -> Counter[str]:
    """Slots by host."""
    hosts = lowered([slot.host for slot in slots])
    once = dict.fromkeys(hosts, 1)
    return Counter(once if len(once) == len(hosts) else hosts)  # counting takes three times as long


def _less(counts: Mapping[str, int], own: Mapping[str, int], names: Sequence[str]) -> list[int]:
    """The counts of these hosts, without ``own`` ones."""
    if not own:
        return [counts.get(name, 0) for name in names]
    return [max(counts.get(name, 0) - own.get(name, 0), 0) for name in names]


NOBODY = Members()
"""Shared by all requests without a group. Nothing is ever added to it."""
