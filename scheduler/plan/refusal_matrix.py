"""Which filters refuse which hosts under which change of a request: what may be told of several changes from one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

import numpy as np

from scheduler.drivers.base import SchedulerDriver
from scheduler.filters.base import Filter
from scheduler.plan.request import Request
from scheduler.table.arrays import Ints, Mask, Words
from scheduler.table.host_table import HostTable
from scheduler.table.hosts import Hosts

FILTERS_LIMIT = 64
"""Filters that a word has bits for. Further ones count as if they let every host pass."""
_FIELDS = {"flavor.extra_specs": "extra_specs"}
"""The names in ``reads`` of fields that ``applies_when`` names otherwise."""


class AlteredRequest(NamedTuple):
    """A ``request`` with a change. ``alters``: the fields that are not as in the original, by the names in ``reads``."""

    alters: frozenset[str]
    request: Request


class RefusalMatrix:
    """The hosts that are refused only by filters that some of the changes may sway, and which of these refuse them.

    ``rows``: these hosts. ``refused``: for each change one word per row, with a bit for each of ``filters`` that refuses the row
    then. So two changes are enough for a row if their words have no bit in common; unless one filter looks at both: see
    ``together``. Filters of one host at a time are not asked.
    """

    def __init__(self, table: HostTable, driver: SchedulerDriver, request: Request, changes: Sequence[AlteredRequest]) -> None:
        self._table, self._driver = table, driver
        self._changes = changes
        altered = frozenset[str]().union(*(change.alters for change in changes))
        chain = driver.chain(request).at_once[:FILTERS_LIMIT]
        self.filters = [one for one in chain if _looks_at(one, altered)]
        hosts = Hosts(table, request)
        left = hosts.eligible.copy()
        for one in chain:
            if one not in self.filters and (passed := one.passes(hosts, request)) is not None:
                left &= passed
        self.rows: Ints = np.flatnonzero(left)
        self._hosts = Hosts(table, request, None if self.rows.size == table.size else self.rows)
        unchanged = self._words(self.filters, lambda one: one.passes(self._hosts, request))
        self.refused = [self._after(change, unchanged) for change in changes]

    def together(self, first: int, second: int, request: Request) -> Mask:
        """The rows that pass with both changes. ``request``: has both."""
        left = self.refused[first] & self.refused[second]
        passed: Mask = left == 0
        both = [
            (number, one)
            for number, one in enumerate(self.filters)
            if _looks_at(one, self._changes[first].alters) and _looks_at(one, self._changes[second].alters)
        ]
        word = np.uint64(sum(1 << number for number, _ in both))
        doubtful = np.flatnonzero((left != 0) & (left & ~word == 0)) if both else left[:0]
        if doubtful.size:
            hosts = Hosts(self._table, request, self.rows[doubtful])
            passed[doubtful] = passing(self._driver, [one for _, one in both], hosts, request)
        return passed

    def _after(self, change: AlteredRequest, unchanged: Words) -> Words:
        asked = [one for one in self.filters if _looks_at(one, change.alters)]
        hosts = Hosts(self._table, change.request, self._hosts.rows)
        chain = self._driver.chain(change.request).at_once
        words = self._words(asked, lambda one: one.passes(hosts, change.request) if one in chain else None)
        kept = sum(1 << number for number, one in enumerate(self.filters) if one not in asked)
        return words | (unchanged & np.uint64(kept))

    def _words(self, asked: Sequence[Filter], passes: Callable[[Filter], Mask | None]) -> Words:
        words = np.zeros(self.rows.size, np.uint64)
        for number, one in enumerate(self.filters):
            passed = passes(one) if one in asked else None
            if passed is not None:
                words |= (~passed).astype(np.uint64) << np.uint64(number)
        return words


def passing(driver: SchedulerDriver, filters: Iterable[Filter], hosts: Hosts, request: Request) -> Mask:
    """Which of the hosts pass those of the filters that apply to the request."""
    chain = driver.chain(request).at_once
    left = np.ones(len(hosts), np.bool_)
    for one in filters:
        if one in chain and (passed := one.passes(hosts, request)) is not None:
            left &= passed
    return left


def _looks_at(one: Filter, fields: Set[str]) -> bool:
    """Whether the filter's answers may depend on one of these fields of a request."""
    if one.reads is None and not one.applies_when:
        return True
    return not fields.isdisjoint(_FIELDS.get(name, name) for name in (*(one.reads or ()), *one.applies_when))
