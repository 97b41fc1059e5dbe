"""The result of one pass over the fleet: the hosts that fit, and their scores."""

from __future__ import annotations

import abc
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from objects.decision import FilterCount
from scheduler.engine.row_inputs import singled_out
from scheduler.framework.batch_request import Request
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts
from scheduler.framework.weigher import Weigher
from scheduler.table.arrays import Floats, Ints, Mask, tally
from scheduler.table.host_table import HostTable
from scheduler.table.kernels import add_scaled, extremes, noise, ordered, ordered_in, untied
from service.rate_limited_log import RateLimitedLog

TIE_NOISE = 1e-9
"""Amplitude of the noise that orders equal scores: scores closer than this count as equal."""
SORTED_HOSTS = 8
"""Number of best hosts sorted at once: more than an explanation shows."""
_WHY_UNMAPPED = "forced down, changed a moment ago, or not mapped to the one cell it reports from"
UNMAPPED = FilterCount(name="HostMapping", before=0, after=0, reason=_WHY_UNMAPPED)
_COMPLAINTS = RateLimitedLog(logging.getLogger(__name__))
_NO_WEIGHTS: Floats = np.zeros(0)
_ZERO: Floats = np.zeros(1)
SELECTED_HOSTS = 320
"""Number of best hosts selected, unsorted: enough to find the alternates of one cell among them. Where there are none, SORTED_HOSTS
are."""


class SparseWeights(NamedTuple):
    """The raw weights of all hosts of the table, if they are 0 but for those of ``rows``, which are in order."""

    rows: Ints
    weights: Floats

    def item(self, row: int) -> float:
        """The raw weight of one row."""
        place = int(self.rows.searchsorted(row))
        return self.weights.item(place) if place < self.rows.size and self.rows.item(place) == row else 0.0

    def extremes(self, left: Mask | None, size: int, least: float | None) -> tuple[float, float]:
        """As ``kernels.extremes`` says it of the weights of all ``size`` hosts."""
        its = self.weights if left is None else self.weights[left[self.rows]]
        found = its if its.size == (size if left is None else int(tally(left))) else np.concatenate((its, _ZERO))
        return extremes(found, None, least)


@dataclass(slots=True)
class WeigherScale:
    """One weigher's scale for a batch: ``multiplier * (raw - low) / span``.

    ``raw``: the raw weights of the surveyed hosts. Often a view of a column of the table, which changes with the table.
    ``multiplier``: None if aggregates set their own, so that it differs by host.
    ``span``: 1 if all hosts weigh the same.
    ``floored``: some hosts weigh less than ``low``; they are raised to it.
    """

    weigher: Weigher
    raw: Floats | SparseWeights
    multiplier: float | None
    low: float
    span: float
    floored: bool = False

    def of(self, hosts: Hosts, raw: Floats) -> Floats:
        """What the weigher adds to the scores of ``hosts`` with the raw weights ``raw``."""
        return self.added(None, hosts, raw)

    def added(self, scores: Floats | None, hosts: Hosts, raw: Floats | SparseWeights) -> Floats:
        """The same, added in place to ``scores`` unless that is None."""
        if isinstance(raw, SparseWeights):
            return self._added_sparsely(np.zeros(len(hosts)) if scores is None else scores, hosts, raw)
        multiplier = self.weigher.multipliers(hosts) if self.multiplier is None else self.multiplier
        if self.floored:
            raw = np.maximum(raw, self.low)
        return add_scaled(scores, raw, self.low, multiplier / self.span)

    def _added_sparsely(self, scores: Floats, hosts: Hosts, raw: SparseWeights) -> Floats:
        its = self.added(scores[raw.rows], hosts, raw.weights)
        nothing = max(0.0, self.low) if self.floored else 0.0
        if gain := (nothing - self.low) * ((self.multiplier or 0.0) / self.span):
            scores += gain
        scores[raw.rows] = its
        return scores


def scale(weigher: Weigher, raw: Floats, multiplier: float | None, left: Mask | None) -> WeigherScale:
    """The scale of these raw weights over the hosts that are ``left`` (None: all)."""
    low, high = extremes(raw, left, weigher.least)
    found = scale_between(weigher, multiplier, low, high)
    found.raw = np.maximum(raw, found.low) if found.floored else raw
    return found


def scale_between(weigher: Weigher, multiplier: float | None, low: float, high: float) -> WeigherScale:
    """The scale, without raw weights, if these are from ``low`` to ``high``."""
    least = weigher.least
    if least is None or low >= least:
        low = low if least is None else least
        return WeigherScale(weigher, _NO_WEIGHTS, multiplier, low, high - low or 1.0)
    return WeigherScale(weigher, _NO_WEIGHTS, multiplier, least, max(high - least, 0.0) or 1.0, floored=True)


def ties(table: HostTable, rows: Ints, seed: int) -> Floats:
    """Noise below ``TIE_NOISE`` that orders rows with equal scores."""
    return noise(table.salt[rows], seed, TIE_NOISE)


def weighed(
    weighers: Sequence[Weigher], hosts: Hosts, request: Request, left: Mask | None
) -> tuple[Floats, tuple[WeigherScale, ...]]:
    """Scores of all hosts, and the weighers' scales, which are computed over the hosts that are ``left`` (None: all)."""
    scores: Floats | None = None
    parts: list[WeigherScale] = []
    keys = hosts.table.aggregates.keys
    for weigher in weighers if len(hosts) else ():
        multiplier = None if weigher.option in keys else weigher.multiplier
        raw = None if multiplier == 0.0 else _raw(weigher, hosts, request, sparse=multiplier is not None)
        if raw is None:
            continue
        if isinstance(raw, SparseWeights):
            low, high = raw.extremes(left, len(hosts), weigher.least)
        else:
            low, high = extremes(raw, left, weigher.least)
        part = scale_between(weigher, multiplier, low, high)
        if not math.isfinite(part.low + part.span):
            _COMPLAINTS(weigher.name, logging.WARNING, "weigher %s is skipped: it returned a non-finite score", weigher.name)
            continue
        part.raw = np.maximum(raw, part.low) if part.floored and not isinstance(raw, SparseWeights) else raw
        parts.append(part)
        if high > part.low:  # else it weighs all of them alike, and adds 0
            scores = part.added(scores, hosts, raw)
    return np.zeros(len(hosts)) if scores is None else scores, tuple(parts)


def _raw(weigher: Weigher, hosts: Hosts, request: Request, *, sparse: bool) -> Floats | SparseWeights | None:
    """The raw weights; None: the weigher does not apply. ``sparse``: those of the rows alone that are not 0 are enough."""
    if not (sparse and weigher.row_inputs and hosts.rows is None):
        return weigher.weigh(hosts, request)
    rows = singled_out(weigher.row_inputs, hosts.table, request)
    weights = weigher.weigh(Hosts(hosts.table, request, rows), request)
    return None if weights is None else SparseWeights(rows, weights)


class Survey(abc.ABC):
    """The hosts that could take the first instance, and how good each is.

    ``total``: hosts in the table. ``parts``: the weighers with their scales. ``changes``: the table's change counter at the survey.
    """

    def __init__(self, total: int, parts: tuple[WeigherScale, ...], changes: int) -> None:
        self.total = total
        self.parts = parts
        self.changes = changes

    @property
    @abc.abstractmethod
    def counts(self) -> tuple[FilterCount, ...]:
        """How many hosts each filter left."""

    @abc.abstractmethod
    def recount(self, counts: tuple[FilterCount, ...]) -> None:
        """These are the counts from now on."""

    @property
    @abc.abstractmethod
    def passing(self) -> int:
        """How many rows passed."""

    @property
    @abc.abstractmethod
    def rows(self) -> Ints:
        """The rows that passed, in the table's order."""

    @property
    @abc.abstractmethod
    def scores(self) -> Floats:
        """The score of each of ``rows``."""

    @abc.abstractmethod
    def best(self, count: int) -> tuple[Ints, Floats]:
        """The ``count`` best rows with their scores, best first; all rows if there are fewer."""

    def first(self) -> int | None:
        """The best row; None if there is none. It costs less than ``best`` if nobody asks for further rows."""
        rows, _ = self.best(1)
        return rows.item(0) if rows.size else None

    @abc.abstractmethod
    def best_of_cell(self, cell: int, count: int) -> tuple[Ints, Floats]:
        """The same among the rows of one cell, given by number."""

    @abc.abstractmethod
    def scores_of(self, rows: Ints) -> Floats:
        """The scores of some of ``rows``."""

    @abc.abstractmethod
    def raws(self, rows: list[int]) -> dict[str, list[float]]:
        """The raw weights of ``rows``, by the weigher's name, as the table is now."""

    def ask_all(self) -> None:  # noqa: B027 - most surveys have asked everything
        """Ask the filters of one host at a time, if there are any, about all hosts that are left."""


class FleetSurvey(Survey):
    """One pass over the fleet, or over some of it."""

    def __init__(
        self,
        hosts: Hosts,
        left: Mask | None,
        scores: Floats,
        parts: tuple[WeigherScale, ...],
        counts: tuple[FilterCount, ...],
        seed: int | None,
    ) -> None:
        """``scores``: one for each of ``hosts``. ``left``: the mask of those that passed the filters; None: all.

        ``seed``: determines the noise that orders equal scores; None: equal scores stay in the table's order.
        """
        super().__init__(len(hosts.table), parts, hosts.table.changes)
        self._hosts = hosts
        self._left = left
        self._scores = scores
        self._seed = seed
        self._selected = SELECTED_HOSTS if hosts.request.wants_alternates else SORTED_HOSTS
        self._leaders: tuple[Ints, Floats, float] | None = None
        self._first: tuple[Ints, Floats] | None = None
        self._counts = counts

    @property
    def counts(self) -> tuple[FilterCount, ...]:
        return self._counts

    def recount(self, counts: tuple[FilterCount, ...]) -> None:
        self._counts = counts

    @property
    def passing(self) -> int:
        return self.rows.size

    @property
    def rows(self) -> Ints:
        return self._rows(self._positions)

    @property
    def scores(self) -> Floats:
        return self._exact(self._positions)

    def _positions_of(self, rows: Ints) -> Ints:
        return rows if self._hosts.rows is None else np.searchsorted(self._hosts.rows, rows)

    def first(self) -> int | None:
        if not self._scores.size:
            return None
        scores = self._scores if self._left is None else np.where(self._left, self._scores, -np.inf)
        highest = scores.item(scores.argmax())
        if highest == -np.inf:
            return None
        positions: Ints = (scores >= highest - TIE_NOISE).nonzero()[0]
        best = positions if positions.size == 1 else positions[self._exact(positions).argmax() :]
        return self._rows(best[:1]).item(0)

    def best(self, count: int) -> tuple[Ints, Floats]:
        if count > self._selected:
            return ordered(*self._ahead(count)[:2], count)
        if self._first is None or count > self._first[0].size:
            rows, scores, _ = self._head
            self._first = ordered(rows, scores, max(count, SORTED_HOSTS))
        rows, scores = self._first
        return rows[:count], scores[:count]

    def best_of_cell(self, cell: int, count: int) -> tuple[Ints, Floats]:
        rows, scores, least = self._head
        if least == -np.inf or tally(self._cells_of_head == cell) >= count:
            rows, scores = ordered_in(rows, scores, self._hosts.table.cell, cell, count)
            if least == -np.inf or scores[-1] >= least:
                return rows, scores
        theirs = self._hosts.of_cell(cell)
        left = None if self._left is None else self._left[theirs]
        positions = theirs[leading(self._scores[theirs], left, count, TIE_NOISE).positions]
        return ordered(self._rows(positions), self._exact(positions), count)

    def scores_of(self, rows: Ints) -> Floats:
        return self._exact(self._positions_of(rows))

    def raws(self, rows: list[int]) -> dict[str, list[float]]:
        positions = rows
        if self._hosts.rows is not None:
            positions = self._positions_of(np.array(rows, np.int64)).tolist()
        return {part.weigher.name: [part.raw.item(position) for position in positions] for part in self.parts}

    @property
    def _head(self) -> tuple[Ints, Floats, float]:
        """At least so many of the best rows as are selected, unsorted, their scores, and down to which score they are complete."""
        if self._leaders is None:
            self._leaders = self._ahead(self._selected)
        return self._leaders

    @cached_property
    def _cells_of_head(self) -> Ints:
        """The cell of each row of the head."""
        cells: Ints = self._hosts.table.cell[self._head[0]]
        return cells

    def _ahead(self, count: int) -> tuple[Ints, Floats, float]:
        positions, least = leading(self._scores, self._left, count, TIE_NOISE)
        return self._rows(positions), self._exact(positions), least

    @property
    def _positions(self) -> Ints:
        return np.arange(self._scores.size) if self._left is None else np.flatnonzero(self._left)

    def _exact(self, positions: Ints) -> Floats:
        """Scores with the noise that orders equal ones."""
        if self._seed is None:
            scores: Floats = self._scores[positions]
            return scores
        return untied(self._scores, positions, self._hosts.table.salt, self._rows(positions), self._seed, TIE_NOISE)

    def _rows(self, positions: Ints) -> Ints:
        return positions if self._hosts.rows is None else self._hosts.rows[positions]


class AskedSingly(Survey):
    """A survey of hosts that also pass filters of one host at a time, asked of the best hosts first until enough pass."""

    def __init__(self, found: Survey, table: HostTable, request: Request, filters: tuple[Filter, ...]) -> None:
        """``found``: the hosts that pass all other filters."""
        super().__init__(found.total, found.parts, found.changes)
        self._found, self._table, self._request, self._filters = found, table, request, filters
        self._passed: dict[int, bool] = {}  # of the rows that were asked about
        self._before = [0] * len(filters)
        self._after = [0] * len(filters)
        self._all: tuple[Ints, Floats] | None = None
        self._counts: tuple[FilterCount, ...] | None = None

    @property
    def counts(self) -> tuple[FilterCount, ...]:
        return (*self._found.counts, *self._asked(whole=False)) if self._counts is None else self._counts

    def recount(self, counts: tuple[FilterCount, ...]) -> None:
        self._counts = counts

    @property
    def passing(self) -> int:
        return self.rows.size

    @property
    def rows(self) -> Ints:
        return self._every()[0]

    @property
    def scores(self) -> Floats:
        return self._every()[1]

    def ask_all(self) -> None:
        self._every()

    def _every(self) -> tuple[Ints, Floats]:
        if self._all is None:
            rows, scores = self._found.rows, self._found.scores
            passed = self._passes(rows)
            self._all = rows[passed], scores[passed]
            self.recount((*self._found.counts, *self._asked(whole=True)))
        return self._all

    def best(self, count: int) -> tuple[Ints, Floats]:
        return ordered(*self._all, count) if self._all is not None else self._first(self._found.best, count)

    def best_of_cell(self, cell: int, count: int) -> tuple[Ints, Floats]:
        if self._all is not None:
            return ordered_in(*self._all, self._table.cell, cell, count)
        return self._first(partial(self._found.best_of_cell, cell), count)

    def scores_of(self, rows: Ints) -> Floats:
        return self._found.scores_of(rows)

    def raws(self, rows: list[int]) -> dict[str, list[float]]:
        return self._found.raws(rows)

    def _first(self, best: Callable[[int], tuple[Ints, Floats]], count: int) -> tuple[Ints, Floats]:
        """The first ``count`` that pass. ``best(n)``: the n best before these filters."""
        looked_at = count
        while True:
            rows, scores = best(looked_at)
            places: list[int] = []
            start = 0
            while len(places) < count and start < rows.size:
                further = rows[start : start + count - len(places)]
                places += (start + np.flatnonzero(self._passes(further))).tolist()
                start += further.size
            if len(places) == count or rows.size < looked_at:
                return rows[places], scores[places]
            looked_at *= 4

    def _passes(self, rows: Ints) -> Mask:
        """Which of these rows pass all of these filters."""
        asked = rows.tolist()
        left = np.array([row for row in asked if row not in self._passed], np.int64)
        self._passed |= dict.fromkeys(left.tolist(), False)
        for number, one in enumerate(self._filters):
            if not left.size:
                break
            answers = one.passes(Hosts(self._table, self._request, left), self._request)
            self._before[number] += left.size
            left = left if answers is None else left[answers]
            self._after[number] += left.size
        self._passed |= dict.fromkeys(left.tolist(), True)
        return np.fromiter((self._passed[row] for row in asked), np.bool_, len(asked))

    def _asked(self, *, whole: bool) -> Iterator[FilterCount]:
        """How many hosts each filter was asked of, and how many of these passed. ``whole``: that was all hosts."""
        for one, before, after in zip(self._filters, self._before, self._after, strict=True):
            if before:
                reason = one.reason if after else one.refusal(Hosts(self._table, self._request), self._request)
                yield FilterCount(name=one.name, before=before, after=after, reason=reason, partial=not whole)


BLOCK_COUNT = 1024
"""Number of blocks that scores are divided into: every 1024th score is in the same block."""
UNDIVIDED_LIMIT = 1536
"""Up to this many scores are not divided into blocks, because looking at all of them is faster."""


class Leaders(NamedTuple):
    """Positions, in ascending order, of all scores of at least ``least``, and of some that are slightly lower."""

    positions: Ints
    least: float


def leading(scores: Floats, left: Mask | None, count: int, slack: float) -> Leaders:
    """The ``count`` best scores among those ``left`` (None: all), and all scores at most ``slack`` below the last of them.

    The result may contain more. The bound is taken from the best score of each block: the ``count``-th best of these is no better
    than the ``count``-th best of all. Hosts that did not pass are among them, so that a lower bound may have to be tried.
    """
    if scores.size > max(2 * count, UNDIVIDED_LIMIT):
        tops = _best_of_blocks(scores)
        enough = count if left is None else count * 5 // 4  # most hosts usually pass
        while enough < tops.size:
            tops.partition(-enough)
            least = tops.item(-enough)
            ahead = scores >= least - slack
            if left is None:
                return Leaders(ahead.nonzero()[0], least)
            ahead &= left
            found: Ints = ahead.nonzero()[0]
            if tally(scores[found] >= least) >= count:
                return Leaders(found, least)
            enough *= 2
    return Leaders(np.arange(scores.size) if left is None else left.nonzero()[0], -np.inf)


def _best_of_blocks(scores: Floats) -> Floats:
    """The best score of each block, as a new array. Each score after the last full row of blocks is a block of its own."""
    size = scores.size // BLOCK_COUNT
    if size < 2:
        return scores.copy()
    full = size * BLOCK_COUNT
    return np.concatenate((scores[:full].reshape(size, BLOCK_COUNT).max(axis=0), scores[full:]))
