"""The aggregates, and the combinations of them that hosts are in.

A fleet has up to ten thousand aggregates, and almost as many combinations as hosts. So a test runs once for each aggregate that
has the key in question, and one array operation over all combinations makes the answers for hosts of it.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from objects.aggregate import RACK, Aggregate
from objects.stats import MAX_EXACT_FLOAT
from scheduler.table.arrays import Floats, Ints, Mask

RATIOS = {"vcpus": "cpu_allocation_ratio", "memory_mb": "ram_allocation_ratio", "disk_gb": "disk_allocation_ratio"}
"""Keys that lower what the hosts of an aggregate may hold."""
ANSWERS_KEPT = 128
"""Number of latest answers for all combinations that are kept: one for each condition that requests have."""
SPARE_COMBINATIONS = 1024
"""All combinations are numbered anew when there are twice as many, and so many more, as hosts in aggregates."""
_NONE = 0
"""The slot of no aggregate. Every combination contains it, so that none is empty."""

LOG = logging.getLogger(__name__)


class Metadatum(NamedTuple):
    """One value of a key in an aggregate: the text, and its parts between commas."""

    text: str
    words: frozenset[str]

    @classmethod
    def parse_text(cls, text: str) -> Metadatum:
        return cls(text, frozenset(word.strip() for word in text.split(",")))


class Racks(NamedTuple):
    """``names``: of all racks, by number. ``of``: the rack of each combination; -1: it is in none, or in several."""

    names: tuple[str, ...]
    of: Ints


class _Combinations:
    """Combinations of slots by number; number 0 is none at all. Grows, and never renumbers.

    ``members``: the slots of all combinations one after the other; ``starts``: where each begins.
    """

    def __init__(self, numbers: Mapping[tuple[int, ...], int], starts: Ints, members: Ints) -> None:
        self.numbers = dict(numbers)
        self.starts = starts
        self.members = members

    @classmethod
    def no_combinations(cls) -> _Combinations:
        return cls({(): 0}, np.zeros(1, np.int64), np.full(1, _NONE, np.int64))

    def with_those(self, combinations: Iterable[tuple[int, ...]]) -> _Combinations:
        """These, and the ones of ``combinations`` that are not among them."""
        grown = _Combinations(self.numbers, self.starts, self.members)
        new: list[tuple[int, ...]] = []
        for slots in combinations:
            if slots not in grown.numbers:
                grown.numbers[slots] = len(grown.numbers)
                new.append((_NONE, *slots))
        if new:
            lengths = np.fromiter(map(len, new), np.int64, len(new))
            starts = self.members.size + np.concatenate(([0], np.cumsum(lengths)[:-1]))
            members = np.fromiter(chain.from_iterable(new), np.int64, int(lengths.sum()))
            grown.starts, grown.members = np.concatenate((self.starts, starts)), np.concatenate((self.members, members))
        return grown

    def members_of(self, number: int) -> Ints:
        end = self.starts[number + 1] if number + 1 < self.starts.size else self.members.size
        return self.members[self.starts[number] + 1 : end]


class Aggregates:
    """The aggregates of a moment, and the combination that each host is in, by number. It does not change.

    ``keys``: of all metadata that hosts have. ``lowering``: whether some lower what hosts may hold. ``moved``: the hosts whose
    combination has another number than ``before``. ``meaning``: the same object as ``before``, if only hosts have come and gone.

    Combinations that were there before keep their numbers, so that only the rows of hosts that were added to or removed from an
    aggregate change.
    """

    def __init__(self, aggregates: Iterable[Aggregate] = (), before: Aggregates | None = None) -> None:
        known = {one.id: one for one in aggregates}
        follows = before is not None and len(before._combinations.numbers) <= 2 * len(before._slots_of) + SPARE_COMBINATIONS
        if before is not None and follows:
            self._follow_changes(known, before)
        else:
            self._start(known, before)
        self._by_key: defaultdict[str, list[tuple[int, Metadatum]]] = defaultdict(list)
        for number, one in known.items():
            for key, text in one.metadata.items():
                self._by_key[key].append((self._slot_of[number], Metadatum.parse_text(text)))
        self.keys = frozenset(key for one in known.values() if one.hosts for key in one.metadata)
        self.meaning: object = before.meaning if before is not None and follows and self._says_what(before) else object()
        self.lowering = not self.keys.isdisjoint(RATIOS.values())
        self._least: dict[str, Floats] = {}
        self._racks: Racks | None = None
        self._answers: OrderedDict[Hashable, Mask] = OrderedDict()

    def _start(self, known: Mapping[int, Aggregate], before: Aggregates | None) -> None:
        self._slot_of = {number: slot for slot, number in enumerate(known, start=_NONE + 1)}
        self._aggregates = {self._slot_of[number]: one for number, one in known.items()}
        self._slot_count = _NONE + 1 + len(known)
        slots: defaultdict[str, list[int]] = defaultdict(list)
        for slot, one in self._aggregates.items():
            for host in one.hosts:
                slots[host].append(slot)
        self._slots_of = {host: tuple(host_slots) for host, host_slots in slots.items()}
        self._combinations = _Combinations.no_combinations().with_those(self._slots_of.values())
        self.moved = frozenset(self._slots_of.keys() | (before._slots_of.keys() if before else ()))

    def _follow_changes(self, known: Mapping[int, Aggregate], before: Aggregates) -> None:
        self._slot_of = {number: slot for number, slot in before._slot_of.items() if number in known}
        self._slot_count = before._slot_count
        for number in known.keys() - before._slot_of.keys():  # a slot is not used again: old combinations name it
            self._slot_of[number] = self._slot_count
            self._slot_count += 1
        self._aggregates = {slot: known[number] for number, slot in self._slot_of.items()}
        slots = dict(before._slots_of)
        moved: set[str] = set()
        for slot in before._aggregates.keys() | self._aggregates.keys():
            then, now = before._aggregates.get(slot), self._aggregates.get(slot)
            if then is not None and now is not None and then.hosts == now.hosts:
                continue
            departed, joined = frozenset(then.hosts if then else ()), frozenset(now.hosts if now else ())
            for host in departed - joined:
                slots[host] = tuple(other for other in slots[host] if other != slot)
            for host in joined - departed:
                slots[host] = tuple(sorted((*slots.get(host, ()), slot)))
            moved |= departed ^ joined
        self.moved = frozenset(moved)
        self._slots_of = slots
        self._combinations = before._combinations.with_those(slots[host] for host in moved)

    def _says_what(self, before: Aggregates) -> bool:
        """Whether each combination says of its hosts what it said ``before``."""
        return (
            self.keys == before.keys
            and self._aggregates.keys() == before._aggregates.keys()
            and all(one.metadata == before._aggregates[slot].metadata for slot, one in self._aggregates.items())
        )

    def combinations_of(self, hosts: Sequence[str]) -> Ints:
        """The numbers of the combinations that the hosts are in."""
        slots = map(self._slots_of.get, hosts, repeat(()))
        return np.fromiter(map(self._combinations.numbers.__getitem__, slots), np.int64, len(hosts))

    def metadata_of(self, combination: int) -> dict[str, tuple[str, ...]]:
        """The texts of the combination by key, one from each aggregate that has the key."""
        texts: defaultdict[str, set[str]] = defaultdict(set)
        for slot in self._combinations.members_of(combination).tolist():
            for key, text in self._aggregates[slot].metadata.items():
                texts[key].add(text)
        return {key: tuple(sorted(values)) for key, values in texts.items()}

    def aggregates_having(self, keys: Iterable[str], test: Callable[[str, Metadatum], bool] | None = None) -> Mask:
        """By slot: which aggregates have one of these keys with a value that passes ``test(key, value)``. Hosts do not matter."""
        is_match = np.zeros(self._slot_count, np.bool_)
        for key in keys:
            for slot, value in self._by_key.get(key, ()):
                if test is None or test(key, value):
                    is_match[slot] = True
        return is_match

    def any_in_combination(self, slots: Mask) -> Mask:
        """By combination: whether one of these aggregates is in it."""
        has_any: Mask = np.logical_or.reduceat(slots[self._combinations.members], self._combinations.starts)
        return has_any

    def totals_by_name(self, per_combination: Ints) -> dict[str, int]:
        """For each aggregate that has hosts, by name, the sum over all combinations that it is in.

        ``per_combination``: a number for each combination; the last ones may be left out.
        """
        lengths = np.diff(self._combinations.starts, append=self._combinations.members.size)
        numbers = np.zeros(lengths.size)
        numbers[: per_combination.size] = per_combination
        sums = np.bincount(self._combinations.members, np.repeat(numbers, lengths), self._slot_count)
        return {one.name: int(sums[slot]) for slot, one in self._aggregates.items() if one.hosts}

    def cached_mask(self, key: Hashable, make: Callable[[], Mask]) -> Mask:
        """The result of ``make()``, by slot or by combination, cached by ``key``, which names everything that it depends on."""
        if key in self._answers:
            self._answers.move_to_end(key)
        else:
            self._answers[key] = make()
            if len(self._answers) > ANSWERS_KEPT:
                self._answers.popitem(last=False)
        return self._answers[key]

    def least_by_combination(self, key: str, default: float) -> Floats:
        """For each combination the smallest of its values for ``key``, ``default`` where it has none that is a number."""
        if key not in self._least:
            numbers = np.full(self._slot_count, np.nan)
            for slot, value in self._by_key.get(key, ()):
                numbers[slot] = _parse_number(key, value.text)
            self._least[key] = np.fmin.reduceat(numbers[self._combinations.members], self._combinations.starts)
        least = self._least[key]
        numbers_or_default: Floats = np.where(np.isnan(least), default, least)
        return numbers_or_default

    @property
    def rack_layout(self) -> Racks:
        """The racks that the aggregates make."""
        if self._racks is None:
            by_slot = self._by_key.get(RACK, [])
            names = sorted({value.text for _, value in by_slot})
            numbers = np.full(self._slot_count, np.nan)
            for slot, value in by_slot:
                numbers[slot] = bisect_left(names, value.text)
            members, starts = numbers[self._combinations.members], self._combinations.starts
            lowest, highest = np.fmin.reduceat(members, starts), np.fmax.reduceat(members, starts)
            self._racks = Racks(tuple(names), np.where(lowest == highest, lowest, -1).astype(np.int64))
        return self._racks

    def keys_starting(self, prefix: str, *, with_hosts: bool = True) -> list[str]:
        """The keys that begin with ``prefix``. ``with_hosts``: only those of aggregates that have hosts."""
        return [key for key in (self.keys if with_hosts else self._by_key) if key.startswith(prefix)]


def _parse_number(key: str, text: str) -> float:
    """Not-a-number for a value that is none, which is logged."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if abs(number) <= MAX_EXACT_FLOAT:
        return number
    LOG.warning("aggregates: %s = %r is not a number: the configured value holds", key, text[:80])
    return math.nan
