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


def rows_within_reach(
    table: HostTable, driver: SchedulerDriver, request: Request, fields: Set[str], limit: int | None = None
) -> tuple[Ints, list[Filter]]:
    """The rows that are refused only by filters that look at one of these fields of a request, and these filters.

    ``limit``: further filters count as if they let every host pass. Filters of one host at a time are not asked.
    """
    chain = driver.chain_for(request).at_once[:limit]
    swayed = [one for one in chain if _looks_at(one, fields)]
    hosts = Hosts(table, request)
    remaining = hosts.is_eligible.copy()
    for one in chain:
        if one not in swayed and (passed := one.passes(hosts, request)) is not None:
            remaining &= passed
    return np.flatnonzero(remaining), swayed


class RefusalMatrix:
    """The hosts that are refused only by filters that some of the changes may sway, and which of these refuse them.

    ``rows``: these hosts. ``refused``: for each change one word per row, with a bit for each of ``filters`` that refuses the row
    then. So two changes are enough for a row if their words have no bit in common; unless one filter looks at both: see
    ``rows_passing_both``. Filters of one host at a time are not asked.
    """

    def __init__(self, table: HostTable, driver: SchedulerDriver, request: Request, changes: Sequence[AlteredRequest]) -> None:
        self._table, self._driver = table, driver
        altered = frozenset[str]().union(*(change.alters for change in changes))
        self.rows, self.filters = rows_within_reach(table, driver, request, altered, FILTERS_LIMIT)
        self._word = np.min_scalar_type((1 << len(self.filters)) - 1)  # the narrower, the less memory is read for each pair
        self._hosts = Hosts(table, request, None if self.rows.size == table.size else self.rows)
        self._swayed = [{number for number, one in enumerate(self.filters) if _looks_at(one, change.alters)} for change in changes]
        unchanged = self._refusal_words(range(len(self.filters)), lambda one: one.passes(self._hosts, request))
        self.refused = [self._words_after(change, swayed, unchanged) for change, swayed in zip(changes, self._swayed, strict=True)]

    def rows_passing_both(self, first: int, second: int, request: Callable[[], Request]) -> Ints:
        """The rows that pass with both changes. ``request``: makes one that has both."""
        both = self._swayed[first] & self._swayed[second]
        refused_words = self.refused[first] & self.refused[second]
        row_positions: Ints = np.flatnonzero((refused_words & self._bits_without(both)) == 0)
        passed = refused_words[row_positions] == 0
        doubtful = np.flatnonzero(~passed)
        if doubtful.size:
            changed = request()
            hosts = Hosts(self._table, changed, self.rows[row_positions[doubtful]])
            passed[doubtful] = passing_mask(self._driver, [self.filters[number] for number in sorted(both)], hosts, changed)
        rows: Ints = self.rows[row_positions[passed]]
        return rows

    def _words_after(self, change: AlteredRequest, swayed: Set[int], unchanged: Words) -> Words:
        hosts = Hosts(self._table, change.request, self._hosts.rows)
        chain = self._driver.chain_for(change.request).at_once
        words = self._refusal_words(swayed, lambda one: one.passes(hosts, change.request) if one in chain else None)
        return words | (unchanged & self._bits_without(swayed))

    def _refusal_words(self, filter_numbers: Iterable[int], passes: Callable[[Filter], Mask | None]) -> Words:
        """A word for each row. ``filter_numbers``: the numbers of the filters that have a bit in it."""
        words = np.zeros(self.rows.size, self._word)
        for number in filter_numbers:
            passed = passes(self.filters[number])
            if passed is not None:
                words |= np.where(passed, np.array(0, self._word), np.array(1 << number, self._word))
        return words

    def _bits_without(self, numbers: Set[int]) -> Words:
        """A word with the bits of all filters but these."""
        return np.array(sum(1 << number for number in range(len(self.filters)) if number not in numbers), self._word)


def passing_mask(driver: SchedulerDriver, filters: Iterable[Filter], hosts: Hosts, request: Request) -> Mask:
    """Which of the hosts pass those of the filters that apply to the request."""
    chain = driver.chain_for(request).at_once
    remaining = np.ones(len(hosts), np.bool_)
    for one in filters:
        if one in chain and (passed := one.passes(hosts, request)) is not None:
            remaining &= passed
    return remaining


def _looks_at(one: Filter, fields: Set[str]) -> bool:
    """Whether the filter's answers may depend on one of these fields of a request."""
    if one.reads is None and not one.applies_when:
        return True
    return not fields.isdisjoint(_FIELDS.get(name, name) for name in (*(one.reads or ()), *one.applies_when))
