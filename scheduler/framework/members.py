"""The hosts of the members of one server group, including members that are being placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from objects.inventory import GroupSlots, Slot
from scheduler.table.arrays import Ints
from scheduler.table.named_rows import NamedRows

Key = TypeVar("Key", bound=Hashable)

FEW_ROWS = 64
"""Up to so many rows, what plans have added is looked up host by host."""
SHORT_TEXT = 1024
"""Up to so many characters, names of hosts are counted one by one. Arrays of a few rows take longer."""


class _Rows(NamedTuple):
    """The rows of hosts with members, in order, and how many these have."""

    rows: Ints
    counts: Ints

    def counts_of(self, rows: Ints) -> Ints:
        """How many members each of ``rows`` has."""
        if not self.rows.size:
            return np.zeros(rows.size, np.int64)
        nearest = np.minimum(self.rows.searchsorted(rows), self.rows.size - 1)
        return np.where(self.rows[nearest] == rows, self.counts[nearest], 0)


class _Slots:
    """The slots that a group has in the database. Nothing of it changes; a large group is told by texts of names."""

    def __init__(self, slots: Collection[Slot], others: GroupSlots) -> None:
        self._placed = _count_keys([slot.host.lower() for slot in slots if not slot.held])
        self._held = _count_keys([slot.host.lower() for slot in slots if slot.held])
        self._others = others
        self._by_host: dict[bool, dict[str, int]] = {}
        self._by_row: dict[bool, _Rows] = {}

    def by_host(self, *, with_held: bool) -> dict[str, int]:
        """Slots by host, in lower case."""
        with_held = with_held and self.any_held
        counts = self._by_host.get(with_held)
        if counts is None:
            counts = _sum_counts(self._placed, _count_keys(_lowered_lines(self._others.placed)))
            if with_held:
                counts = _sum_counts(_sum_counts(counts, self._held), _count_keys(_lowered_lines(self._others.held)))
            self._by_host[with_held] = counts
        return counts

    @property
    def are_few(self) -> bool:
        return len(self._others.placed) + len(self._others.held) <= SHORT_TEXT and len(self._placed) + len(self._held) <= FEW_ROWS

    @property
    def any_placed(self) -> bool:
        return bool(self._placed or self._others.placed)

    @property
    def any_held(self) -> bool:
        return bool(self._held or self._others.held)

    def by_row(self, named: NamedRows, *, with_held: bool) -> _Rows:
        """The same by row, for the time of one plan: the hosts of rows do not change meanwhile."""
        with_held = with_held and self.any_held
        rows = self._by_row.get(with_held)
        if rows is None:
            rows = self._by_row[with_held] = self._of_texts(named, with_held=with_held) or rows_of(
                named, self.by_host(with_held=with_held)
            )
        return rows

    def _of_texts(self, named: NamedRows, *, with_held: bool) -> _Rows | None:
        """None if not all slots are told by texts, these are short, or the hosts have several rows."""
        if self._placed or self._held or self.are_few:
            return None
        uuid, others = self._others.group_uuid, self._others
        placed = named.of_text((uuid, False), others.placed)
        held = named.of_text((uuid, True), others.held) if with_held else _NO_ROWS
        if placed is None or held is None:
            return None
        rows: Ints = np.sort(np.concatenate((placed, held)) if held.size else placed)
        rows = rows[rows.searchsorted(0) :]  # without hosts that the table does not know
        if rows.size > 1 and (is_first := rows[1:] != rows[:-1]).sum() + 1 < rows.size:
            firsts = np.concatenate(([0], is_first.nonzero()[0] + 1))
            return _Rows(rows[firsts], np.append(firsts[1:], rows.size) - firsts)
        return _Rows(rows, np.ones(rows.size, np.int64))


_NO_ROWS: Ints = np.zeros(0, np.int64)


class _Taken(NamedTuple):
    """A member that a plan has added, or a slot that it holds."""

    host: str
    held: bool
    fault_domain: str | None


@dataclass(slots=True)
class _Counts:
    """What the views of one group share. ``taken``: what plans have added, the latest last; ``version`` rises with every change.

    ``placed``: what they have added, by host; ``both``: with what they hold. ``in_domains``: by fault domain and host.
    """

    slots: _Slots
    in_domains: dict[tuple[str, str], int]
    placed: dict[str, int] = field(default_factory=dict)
    both: dict[str, int] = field(default_factory=dict)
    taken: list[_Taken] = field(default_factory=list)
    version: int = 0

    def change_count(self, taken: _Taken, by: int) -> None:
        self.version += 1
        _add_count(self.both, taken.host, by)
        if not taken.held:
            _add_count(self.placed, taken.host, by)
        if taken.fault_domain is not None:
            _add_count(self.in_domains, (taken.fault_domain, taken.host), by)

    def added_counts(self, *, with_held: bool) -> dict[str, int]:
        """By host."""
        return self.both if with_held else self.placed


@dataclass(slots=True)
class _Column:
    """``counts_by_host`` by row, as of a ``version`` of the counts."""

    counts: Ints
    version: int
    with_held: bool
    named: NamedRows


class Members:
    """Counts of a group's members per host, and separately of slots held for retries. Host names are case-insensitive.

    ``moving``: how many of them have two places, or are about to have none.
    """

    def __init__(self, slots: Collection[Slot] = (), others: GroupSlots = GroupSlots(group_uuid="")) -> None:  # noqa: B008 - frozen
        """``others``: slots besides these, of which only the hosts are known. Its own ``slots`` do not count."""
        in_domains = [(slot.fault_domain, slot.host.lower()) for slot in slots if slot.fault_domain is not None]
        in_domains += [(fault_domain, host.lower()) for fault_domain, host in others.in_domains]
        self._shared = _Counts(_Slots(slots, others), _count_keys(in_domains))
        self._own_slots: tuple[Slot, ...] = ()
        self._own_counts: dict[bool, dict[str, int]] = {}
        self.moving = len([slot for slot in slots if slot.moving])
        self._column: _Column | None = None
        self._cached_rows: tuple[int, bool, _Rows] | None = None

    def view_without(self, own_slots: Collection[Slot]) -> Members:
        """A view of the same members that does not count the slots ``own_slots``. They must be among them.

        The view shares its counts with the original: what is added to one is seen in the other.
        """
        view = Members()
        view._shared, view._own_slots = self._shared, tuple(own_slots)
        view.moving = self.moving - len([slot for slot in own_slots if slot.moving])
        return view

    def copy_counts(self) -> Members:
        """An independent copy of the counts, which gives nothing back that was taken before."""
        other, shared = Members(), self._shared
        other._shared = _Counts(shared.slots, shared.in_domains.copy(), shared.placed.copy(), shared.both.copy())
        other._own_slots, other.moving = self._own_slots, self.moving
        return other

    @property
    def undo_mark(self) -> int:
        """A point to ``give_back`` to."""
        return len(self._shared.taken)

    def give_back(self, mark: int) -> None:
        """Undo all that was added since then, by views that share these counts, too."""
        while len(self._shared.taken) > mark:
            self._change_counts(self._shared.taken.pop(), -1)

    @property
    def taken_hosts(self) -> set[str]:
        """The hosts, in lower case, where plans have added members or hold slots."""
        return {member.host for member in self._shared.taken}

    def counts_by_host(self, *, with_held: bool) -> dict[str, int]:
        """Members per host name in lower case; hosts without members are absent."""
        return _sum_counts(self._counts_before(with_held=with_held), self._shared.added_counts(with_held=with_held)).copy()

    def _counts_before(self, *, with_held: bool) -> dict[str, int]:
        """Members per host but for those that plans have added."""
        if not self._own_slots:
            return self._shared.slots.by_host(with_held=with_held)
        if with_held not in self._own_counts:
            own_hosts = [slot.host.lower() for slot in self._own_slots if with_held or not slot.held]
            self._own_counts[with_held] = _subtract_keys(self._shared.slots.by_host(with_held=with_held), own_hosts)
        return self._own_counts[with_held]

    def rows_with_members(self, named: NamedRows, least: int, *, with_held: bool) -> Ints:
        """The rows, in order, of the hosts with at least so many members."""
        all_rows = self._all_rows(named, with_held=with_held)
        return all_rows.rows if least <= 1 else all_rows.rows[all_rows.counts >= least]

    def of_rows(self, named: NamedRows, rows: Ints, *, with_held: bool) -> Ints:
        """How many members the host of each of these rows has."""
        added = self._shared.added_counts(with_held=with_held)
        if rows.size <= FEW_ROWS and self._shared.slots.are_few:
            counts = _sum_counts(self._counts_before(with_held=with_held), added)
            return np.array([counts.get(named.hosts[row].lower(), 0) for row in rows.tolist()], np.int64)
        if not added or rows.size > FEW_ROWS:
            return self._all_rows(named, with_held=with_held).counts_of(rows)
        more = [added.get(named.hosts[row].lower(), 0) for row in rows.tolist()]
        return self._rows_before(named, with_held=with_held).counts_of(rows) + more

    def by_row(self, named: NamedRows, size: int, *, with_held: bool) -> Ints:
        """The same for each of ``size`` rows. Not to be written to."""
        column, version = self._column, self._shared.version
        if column is None or (column.version, column.counts.size, column.with_held) != (version, size, with_held):
            all_rows = self._all_rows(named, with_held=with_held)
            by_row = np.zeros(size, dtype=np.int64)
            by_row[all_rows.rows] = all_rows.counts
            self._column = column = _Column(by_row, version, with_held, named)
        return column.counts

    def _rows_before(self, named: NamedRows, *, with_held: bool) -> _Rows:
        """The rows of members but for those that plans have added."""
        if not self._own_slots:
            return self._shared.slots.by_row(named, with_held=with_held)
        return rows_of(named, self._counts_before(with_held=with_held))

    def _all_rows(self, named: NamedRows, *, with_held: bool) -> _Rows:
        """The rows of all members. They are asked for several times before one is added."""
        version = self._shared.version
        if self._cached_rows is None or self._cached_rows[:2] != (version, with_held):
            member_rows, added = self._rows_before(named, with_held=with_held), self._shared.added_counts(with_held=with_held)
            if added:
                more = rows_of(named, added)
                rows, places = np.unique(np.concatenate((member_rows.rows, more.rows)), return_inverse=True)
                counts = np.bincount(places, np.concatenate((member_rows.counts, more.counts)), rows.size)
                member_rows = _Rows(rows, counts.astype(np.int64))
            self._cached_rows = version, with_held, member_rows
        return self._cached_rows[2]

    def _change_counts(self, taken: _Taken, by: int) -> None:
        column, known = self._column, self._shared.version
        self._shared.change_count(taken, by)
        if column is not None and column.version == known and (column.with_held or not taken.held):
            column.counts[column.named.rows_and_positions((taken.host,))[0]] += by
            column.version = self._shared.version

    def of_other_domains(self, fault_domain: str) -> set[str]:
        """The hosts, in lower case, of members of other fault domains. Members of none are of no other."""
        own_domains = [(slot.fault_domain, slot.host.lower()) for slot in self._own_slots if slot.fault_domain is not None]
        remaining = _subtract_keys(self._shared.in_domains, own_domains) if own_domains else self._shared.in_domains
        return {host for domain, host in remaining if domain != fault_domain}

    def add_member(self, host: str, fault_domain: str | None = None) -> None:
        self._take_slot(_Taken(host.lower(), held=False, fault_domain=fault_domain))

    def hold_slot(self, host: str) -> None:
        """Count a slot that is held on the host, because the host is an alternate of a member."""
        self._take_slot(_Taken(host.lower(), held=True, fault_domain=None))

    def _take_slot(self, taken: _Taken) -> None:
        self._shared.taken.append(taken)
        self._change_counts(taken, 1)

    @property
    def any_placed(self) -> bool:
        """Whether there are members, its own aside."""
        if self._shared.placed:
            return True
        return bool(self._counts_before(with_held=False)) if self._own_slots else self._shared.slots.any_placed

    @property
    def any_held(self) -> bool:
        """Whether slots are held, its own aside."""
        return self._held_beside(self._own_slots) or self._shared.both != self._shared.placed

    def _held_beside(self, own_slots: Collection[Slot]) -> bool:
        slots = self._shared.slots
        if not (own_slots and slots.any_held):
            return slots.any_held
        return self._counts_before(with_held=True) != self._counts_before(with_held=False)


def rows_of(named: NamedRows, counts: Mapping[str, int]) -> _Rows:
    """The rows of these hosts."""
    if not counts:
        return _Rows(_NO_ROWS, _NO_ROWS)
    rows, positions = named.rows_and_positions(counts)
    order = rows.argsort()
    return _Rows(rows[order], np.fromiter(counts.values(), np.int64, len(counts))[positions[order]])


def _lowered_lines(text: str) -> list[str]:
    """The names in a text of GroupSlots, in lower case."""
    return text.lower().split("\n") if text else []


def _add_count(counts: dict[Key, int], key: Key, by: int) -> None:
    """Count so many more, and forget what is not there any more."""
    count = counts.get(key, 0) + by
    if count:
        counts[key] = count
    else:
        del counts[key]


def _count_keys(keys: Sequence[Key]) -> dict[Key, int]:
    """How often each of them is there."""
    once = dict.fromkeys(keys, 1)
    return once if len(once) == len(keys) else dict(Counter(keys))  # counting takes three times as long


def _sum_counts(counts: dict[str, int], others: dict[str, int]) -> dict[str, int]:
    """Both together; one of them itself if the other is empty."""
    if not (counts and others):
        return counts or others
    total = counts.copy()
    for key, count in others.items():
        total[key] = total.get(key, 0) + count
    return total


def _subtract_keys(counts: dict[Key, int], keys: Iterable[Key]) -> dict[Key, int]:
    """Without these."""
    remaining = counts.copy()
    for key in keys:
        _add_count(remaining, key, -1)
    return remaining


NOBODY = Members()
"""Shared by all requests without a group. Nothing is ever added to it."""
