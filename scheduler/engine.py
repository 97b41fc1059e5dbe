"""Choose hosts for a batch: filter, weigh, choose, take, again. Pure arithmetic over the host table.

Every function works under the table's lock and on the table as it is, with what the plan has taken so far; whoever calls puts a
``table.tentative()`` around it.

The ranges by which raw weights are scaled are fixed when a batch is surveyed, over the hosts that passed the filters then (Nova
fixes them anew for every instance). A host's score then moves in a straight line as instances are put on it, which spreads a batch
evenly and makes a plan cost one pass over the fleet and a few over the best of it, not one pass per instance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from objects.decision import FilterCount
from scheduler.arrays import Floats, Ints, Mask, noise
from scheduler.drivers.base import Driver
from scheduler.filters.base import Filter, HostByHostFilter
from scheduler.hosts import Hosts
from scheduler.request import Request
from scheduler.table import HostTable
from scheduler.weighers.base import Weigher

NOISE = 1e-9
"""Scores closer than this are equal, and chance decides between them."""
SPARE = 8
"""Hosts kept in the front beyond one per instance."""
UNMAPPED = FilterCount(name="HostMapping", before=0, after=0, reason="not mapped to the cell it reports from, or not known there")


@dataclass(slots=True)
class Part:
    """One weigher's scale for a batch: ``multiplier * (raw - low) / span``. No span: all hosts weigh the same so far."""

    weigher: Weigher
    multiplier: float
    low: float
    span: float

    def of(self, raw: Floats) -> Floats:
        return (raw - self.low) * (self.multiplier / self.span)


@dataclass(slots=True)
class Survey:
    """The hosts that could take the first instance, and how good each is."""

    total: int
    counts: tuple[FilterCount, ...]
    rows: Ints
    scores: Floats
    parts: tuple[Part, ...]


def survey(table: HostTable, driver: Driver, request: Request, within: Ints | None = None) -> Survey:
    """One pass over the fleet, or over the rows ``within``. Rows come in the table's order."""
    hosts = Hosts(table, request, within)
    mask, counts = narrow(driver.filters, hosts, request)
    rows: Ints = np.flatnonzero(mask)
    if within is not None:
        rows = within[rows]
    scores = _ties(table, driver, request, rows)
    parts: list[Part] = []
    for weigher, raw in _raw(driver.weighers, Hosts(table, request, rows), request):
        part = _scale(weigher, raw)
        scores += part.of(raw)
        parts.append(part)
    return Survey(total=len(table), counts=counts, rows=rows, scores=scores, parts=tuple(parts))


def narrow(filters: Sequence[Filter], hosts: Hosts, request: Request) -> tuple[Mask, tuple[FilterCount, ...]]:
    """Which hosts pass all filters, and how many were left after each; the filters after one that leaves none are not asked."""
    mask = hosts.eligible.copy()
    reported = int(np.count_nonzero(hosts.cell >= 0))
    left = int(np.count_nonzero(mask))
    counts: list[FilterCount] = []
    if left < reported:
        counts.append(FilterCount(name=UNMAPPED.name, before=reported, after=left, reason=UNMAPPED.reason))
    for one in filters:
        if not left:
            break
        if request.forced and not one.guards_host:
            continue
        before = left
        passed = _passed(one, hosts, request, mask)
        if passed is not None:
            mask &= passed
            left = int(np.count_nonzero(mask))
        elif one.on_demand:
            continue
        counts.append(FilterCount(name=one.name, before=before, after=left, reason=one.reason))
    return mask, tuple(counts)


def fits(driver: Driver, table: HostTable, request: Request, rows: Ints, more: Ints | int = 0) -> Mask:
    """The predicate that planned, asked about these rows alone."""
    return narrow(driver.filters, Hosts(table, request, rows, more), request)[0]


def choose(table: HostTable, driver: Driver, request: Request, found: Survey, count: int) -> list[int]:
    """Rows for ``count`` instances in order, each taken; fewer where no host fits any more."""
    front = _Front(table, driver, request, found, count)
    chosen: list[int] = []
    while len(chosen) < count:
        best = front.best()
        if best is None:
            break
        row = int(front.rows[best])
        take(table, request, row)
        chosen.append(row)
        if len(chosen) < count:
            front.advance(best)
    return chosen


def take(table: HostTable, request: Request, row: int) -> None:
    """Put one instance on the row, and into its group."""
    table.take(row, request.vcpus, request.memory_mb, request.disk_gb)
    if request.group is not None:
        request.members.add(table.hosts[row])


def score(table: HostTable, driver: Driver, request: Request, parts: tuple[Part, ...], rows: Ints, more: Ints | int = 0) -> Floats:
    """Total scores of the rows as the table is now; -inf where a filter says no."""
    hosts = Hosts(table, request, rows, more)
    scores = _ties(table, driver, request, rows)
    for part in parts:
        raw = part.weigher.weigh(hosts, request)
        if raw is not None:
            scores += part.of(raw)
    scores[~narrow(driver.filters, hosts, request)[0]] = -np.inf
    return scores


def weights(table: HostTable, request: Request, parts: tuple[Part, ...], rows: Ints) -> dict[str, list[float]]:
    """What each weigher adds to each row's score, by weigher."""
    raws = _raw([part.weigher for part in parts], Hosts(table, request, rows), request)
    return {part.weigher.name: part.of(raw).tolist() for part, (_, raw) in zip(parts, raws, strict=True)}


class _Front:
    """The best rows of a survey, with their scores after 0, 1, 2... more instances of the batch on each.

    Without a group an instance changes the score of its own row only, and all instances are alike. So rows not taken yet come in
    the order of the survey, which is why ``count`` of them (and a few) are enough, and each step is computed once for all rows.
    """

    def __init__(self, table: HostTable, driver: Driver, request: Request, found: Survey, count: int) -> None:
        self._table, self._driver, self._request, self._parts = table, driver, request, found.parts
        enough = count + SPARE + min(driver.subset, found.rows.size)
        if request.group is None and found.rows.size > enough:
            best = np.argpartition(found.scores, -enough)[-enough:]
            best.sort()
        else:
            best = np.arange(found.rows.size)
        self.rows: Ints = found.rows[best]
        self._now: Floats = found.scores[best]
        self._level: Ints = np.zeros(self.rows.size, dtype=np.int64)
        self._steps: list[Floats] = [self._now.copy()]
        if request.group is not None and request.members.any_held:
            self._look_again()

    def best(self) -> int | None:
        """The position of the row to take next."""
        if not self.rows.size:
            return None
        if self._driver.subset > 1:
            return self._drawn()
        position = int(self._now.argmax())
        return position if self._now[position] > -np.inf else None

    def advance(self, position: int) -> None:
        """The row at ``position`` has been taken."""
        if self._request.group is not None:
            self._look_again()
            return
        self._level[position] += 1
        level = int(self._level[position])
        if level == len(self._steps):
            # what is on a row already is in the table, so only the rest is added to it
            self._steps.append(score(self._table, self._driver, self._request, self._parts, self.rows, level - self._level))
        self._now[position] = self._steps[level][position]

    def _look_again(self) -> None:
        """Where one member goes bears on all others. Slots held for retries yield only where nothing else fits."""
        self._request.yielding = False
        self._now = score(self._table, self._driver, self._request, self._parts, self.rows)
        if self._request.members.any_held and not (self._now > -np.inf).any():
            self._request.yielding = True
            self._now = score(self._table, self._driver, self._request, self._parts, self.rows)

    def _drawn(self) -> int | None:
        open_rows = np.flatnonzero(self._now > -np.inf)
        if not open_rows.size:
            return None
        subset = min(self._driver.subset, open_rows.size)
        if subset < open_rows.size:
            best = np.argpartition(self._now[open_rows], -subset)[-subset:]
            open_rows = open_rows[np.sort(best)]
        return int(open_rows[self._request.draw(subset)])


def _passed(one: Filter, hosts: Hosts, request: Request, mask: Mask) -> Mask | None:
    if not isinstance(one, HostByHostFilter):
        return one.passes(hosts, request)
    left = np.flatnonzero(mask)
    rows = left if hosts.rows is None else hosts.rows[left]
    more = hosts.more if isinstance(hosts.more, int) else hosts.more[left]
    answers = one.passes(Hosts(hosts.table, request, rows, more), request)
    if answers is None:
        return None
    passed = np.zeros(mask.size, dtype=np.bool_)
    passed[left] = answers
    return passed


def _ties(table: HostTable, driver: Driver, request: Request, rows: Ints) -> Floats:
    """Where scores begin: at nothing, or at a little noise that orders equals."""
    return noise(table.salt[rows], request.seed) * NOISE if driver.shuffle else np.zeros(rows.size)


def _raw(weighers: Sequence[Weigher], hosts: Hosts, request: Request) -> Iterator[tuple[Weigher, Floats]]:
    """Those weighers that are switched on and have an opinion, with it."""
    for weigher in weighers:
        raw = weigher.weigh(hosts, request) if weigher.multiplier and len(hosts) else None
        if raw is not None:
            yield weigher, raw


def _scale(weigher: Weigher, raw: Floats) -> Part:
    low, high = float(raw.min()), float(raw.max())
    low = low if weigher.least is None else min(low, weigher.least)
    return Part(weigher, weigher.multiplier, low, high - low or 1.0)
