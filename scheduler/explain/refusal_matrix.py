"""Which filters refuse which hosts under which change of a request: what may be told of several changes from one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler.engine.driver import SchedulerDriver
from scheduler.framework.batch_request import Request
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts
from scheduler.table.arrays import Ints, Mask
from scheduler.table.host_table import HostTable

Words = npt.NDArray[np.unsignedinteger[Any]]
FILTERS_LIMIT = 64
"""Filters that a word has bits for. Further ones count as if they let every host pass."""
_FIELDS = {"flavor.extra_specs": "extra_specs"}
"""The names in ``reads`` of fields that ``applies_when`` names otherwise."""


class AlteredRequest(NamedTuple):
    """A ``request`` with a change. ``alters``: the fields that are not as in the original, by the names in ``reads``."""

    alters: frozenset[str]
    request: Request


def unswayed(
    table: HostTable, driver: SchedulerDriver, request: Request, fields: Set[str], limit: int | None = None
) -> tuple[Ints, list[Filter]]:
    """The rows that are refused only by filters that look at one of these fields of a request, and these filters.

    ``limit``: further filters count as if they let every host pass. Filters of one host at a time are not asked.
    """
    chain = driver.chain(request).at_once[:limit]
    swayed = [one for one in chain if _looks_at(one, fields)]
    hosts = Hosts(table, request)
    left = hosts.eligible.copy()
    for one in chain:
        if one not in swayed and (passed := one.passes(hosts, request)) is not None:
            left &= passed
    return np.flatnonzero(left), swayed


class RefusalMatrix:
    """The hosts that are refused only by filters that some of the changes may sway, and which of these refuse them.

    ``rows``: these hosts. ``refused``: for each change one word per row, with a bit for each of ``filters`` that refuses the row
    then. So two changes are enough for a row if their words have no bit in common; unless one filter looks at both: see
    ``together``. Filters of one host at a time are not asked.
    """

    def __init__(self, table: HostTable, driver: SchedulerDriver, request: Request, changes: Sequence[AlteredRequest]) -> None:
        self._table, self._driver = table, driver
        altered = frozenset[str]().union(*(change.alters for change in changes))
        self.rows, self.filters = unswayed(table, driver, request, altered, FILTERS_LIMIT)
        self._word = np.min_scalar_type((1 << len(self.filters)) - 1)  # the narrower, the less memory is read for each pair
        self._hosts = Hosts(table, request, None if self.rows.size == table.size else self.rows)
        self._swayed = [{number for number, one in enumerate(self.filters) if _looks_at(one, each.alters)} for each in changes]
        unchanged = self._words(range(len(self.filters)), lambda one: one.passes(self._hosts, request))
        self.refused = [self._after(each, swayed, unchanged) for each, swayed in zip(changes, self._swayed, strict=True)]

    def together(self, first: int, second: int, request: Callable[[], Request]) -> Ints:
        """The rows that pass with both changes. ``request``: makes one that has both."""
        both = self._swayed[first] & self._swayed[second]
        left = self.refused[first] & self.refused[second]
        found: Ints = np.flatnonzero((left & self._bits_without(both)) == 0)
        passed = left[found] == 0
        doubtful = np.flatnonzero(~passed)
        if doubtful.size:
            changed = request()
            hosts = Hosts(self._table, changed, self.rows[found[doubtful]])
            passed[doubtful] = passing(self._driver, [self.filters[number] for number in sorted(both)], hosts, changed)
        rows: Ints = self.rows[found[passed]]
        return rows

    def _after(self, change: AlteredRequest, swayed: Set[int], unchanged: Words) -> Words:
        hosts = Hosts(self._table, change.request, self._hosts.rows)
        chain = self._driver.chain(change.request).at_once
        words = self._words(swayed, lambda one: one.passes(hosts, change.request) if one in chain else None)
        return words | (unchanged & self._bits_without(swayed))

    def _words(self, asked: Iterable[int], passes: Callable[[Filter], Mask | None]) -> Words:
        """A word for each row. ``asked``: the numbers of the filters that have a bit in it."""
        words = np.zeros(self.rows.size, self._word)
        for number in asked:
            passed = passes(self.filters[number])
            if passed is not None:
                words |= np.where(passed, np.array(0, self._word), np.array(1 << number, self._word))
        return words

    def _bits_without(self, numbers: Set[int]) -> Words:
        """A word with the bits of all filters but these."""
        return np.array(sum(1 << number for number in range(len(self.filters)) if number not in numbers), self._word)


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
