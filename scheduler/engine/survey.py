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
from scheduler.table.kernels import add_scaled, find_extremes, order_best, seeded_noise
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
    """The raw weights of all hosts of the table, if they are 0 but for those of ``passing_rows``, which are in order."""

    rows: Ints
    weights: Floats

    def item(self, row: int) -> float:
        """The raw weight of one row."""
        place = int(self.rows.searchsorted(row))
        return self.weights.item(place) if place < self.rows.size and self.rows.item(place) == row else 0.0

    def weight_extremes(self, remaining: Mask | None, size: int, least: float | None) -> tuple[float, float]:
        """As ``kernels.find_extremes`` says it of the weights of all ``size`` hosts."""
        its = self.weights if remaining is None else self.weights[remaining[self.rows]]
        candidates = its if its.size == (size if remaining is None else int(tally(remaining))) else np.concatenate((its, _ZERO))
        return find_extremes(candidates, None, least)


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

    def scores_of(self, hosts: Hosts, raw: Floats) -> Floats:
        """What the weigher adds to the scores of ``hosts`` with the raw weights ``raw``."""
        return self.add_scores(None, hosts, raw)

    def add_scores(self, scores: Floats | None, hosts: Hosts, raw: Floats | SparseWeights) -> Floats:
        """The same, added in place to ``scores`` unless that is None."""
        if isinstance(raw, SparseWeights):
            return self._added_sparsely(np.zeros(len(hosts)) if scores is None else scores, hosts, raw)
        multiplier = self.weigher.host_multipliers(hosts) if self.multiplier is None else self.multiplier
        if self.floored:
            raw = np.maximum(raw, self.low)
        return add_scaled(scores, raw, self.low, multiplier / self.span)

    def _added_sparsely(self, scores: Floats, hosts: Hosts, raw: SparseWeights) -> Floats:
        its = self.add_scores(scores[raw.rows], hosts, raw.weights)
        nothing = max(0.0, self.low) if self.floored else 0.0
        if gain := (nothing - self.low) * ((self.multiplier or 0.0) / self.span):
            scores += gain
        scores[raw.rows] = its
        return scores


def scale_weights(weigher: Weigher, raw: Floats, multiplier: float | None, remaining: Mask | None) -> WeigherScale:
    """The scale of these raw weights over the hosts that are ``remaining`` (None: all)."""
    low, high = find_extremes(raw, remaining, weigher.least)
    scaled = scale_between(weigher, multiplier, low, high)
    scaled.raw = np.maximum(raw, scaled.low) if scaled.floored else raw
    return scaled


def scale_between(weigher: Weigher, multiplier: float | None, low: float, high: float) -> WeigherScale:
    """The scale, without raw weights, if these are from ``low`` to ``high``."""
    least = weigher.least
    if least is None or low >= least:
        low = low if least is None else least
        return WeigherScale(weigher, _NO_WEIGHTS, multiplier, low, high - low or 1.0)
    return WeigherScale(weigher, _NO_WEIGHTS, multiplier, least, max(high - least, 0.0) or 1.0, floored=True)


def tie_noise(table: HostTable, rows: Ints, seed: int) -> Floats:
    """Noise below ``TIE_NOISE`` that orders rows with equal scores."""
    return seeded_noise(table.salt[rows], seed, TIE_NOISE)


def weigh_hosts(
    weighers: Sequence[Weigher], hosts: Hosts, request: Request, remaining: Mask | None
) -> tuple[Floats, tuple[WeigherScale, ...]]:
    """Scores of all hosts, and the weighers' scales, which are computed over the hosts that are ``remaining`` (None: all)."""
    scores: Floats | None = None
    parts: list[WeigherScale] = []
    keys = hosts.table.current_aggregates.keys
    for weigher in weighers if len(hosts) else ():
        multiplier = None if weigher.option in keys else weigher.weight_multiplier
        raw = None if multiplier == 0.0 else _raw_weights(weigher, hosts, request, sparse=multiplier is not None)
        if raw is None:
            continue
        if isinstance(raw, SparseWeights):
            low, high = raw.weight_extremes(remaining, len(hosts), weigher.least)
        else:
            low, high = find_extremes(raw, remaining, weigher.least)
        part = scale_between(weigher, multiplier, low, high)
        if not math.isfinite(part.low + part.span):
            _COMPLAINTS(weigher.name, logging.WARNING, "weigher %s is skipped: it returned a non-finite score", weigher.name)
            continue
        part.raw = np.maximum(raw, part.low) if part.floored and not isinstance(raw, SparseWeights) else raw
        parts.append(part)
        if high > part.low:  # else it weighs all of them alike, and adds 0
            scores = part.add_scores(scores, hosts, raw)
    return np.zeros(len(hosts)) if scores is None else scores, tuple(parts)


def _raw_weights(weigher: Weigher, hosts: Hosts, request: Request, *, sparse: bool) -> Floats | SparseWeights | None:
    """The raw weights; None: the weigher does not apply. ``sparse``: those of the rows alone that are not 0 are enough."""
    if not (sparse and weigher.row_inputs and hosts.rows is None):
        return weigher.weigh(hosts, request)
    rows = singled_out(weigher.row_inputs, hosts.table, request)
    weights = weigher.weigh(Hosts(hosts.table, request, rows), request)
    return None if weights is None else SparseWeights(rows, weights)


class Survey(abc.ABC):
    """The hosts that could take the first instance, and how good each is.

    ``total``: hosts in the table. ``parts``: the weighers with their scales. ``changes``: the table's change counter at the survey.
    ``filter_counts``: how many hosts each filter left.
    """

    filter_counts: tuple[FilterCount, ...]

    def __init__(self, total: int, parts: tuple[WeigherScale, ...], changes: int) -> None:
        self.total = total
        self.parts = parts
        self.changes = changes

    @property
    @abc.abstractmethod
    def passing_count(self) -> int:
        """How many rows passed."""

    @property
    @abc.abstractmethod
    def passing_rows(self) -> Ints:
        """The rows that passed, in the table's order."""

    @property
    @abc.abstractmethod
    def passing_scores(self) -> Floats:
        """The score of each of ``passing_rows``."""

    @abc.abstractmethod
    def best_rows(self, count: int) -> tuple[Ints, Floats]:
        """The ``count`` best rows with their scores, best first; all rows if there are fewer."""

    def first_row(self) -> int | None:
        """The best row; None if there is none. It costs less than ``best_rows`` if nobody asks for further rows."""
        rows, _ = self.best_rows(1)
        return rows.item(0) if rows.size else None

    @abc.abstractmethod
    def best_of_cell(self, cell: int, count: int) -> tuple[Ints, Floats]:
        """The same among the rows of one cell, given by number."""

    @abc.abstractmethod
    def scores_of(self, rows: Ints) -> Floats:
        """The scores of some of ``rows``."""

    @abc.abstractmethod
    def raw_weights(self, rows: list[int]) -> dict[str, list[float]]:
        """The raw weights of ``rows``, by the weigher's name, as the table is now."""

    def ask_all(self) -> None:  # noqa: B027 - most surveys have asked everything
        """Ask the filters of one host at a time, if there are any, about all hosts that are left."""


class FleetSurvey(Survey):
    """One pass over the fleet, or over some of it."""

    def __init__(
        self,
        hosts: Hosts,
        remaining: Mask | None,
        scores: Floats,
        parts: tuple[WeigherScale, ...],
        counts: tuple[FilterCount, ...],
        seed: int | None,
    ) -> None:
        """``scores``: one for each of ``hosts``. ``remaining``: the mask of those that passed the filters; None: all.

        ``seed``: determines the noise that orders equal scores; None: equal scores stay in the table's order.
        """
        super().__init__(len(hosts.table), parts, hosts.table.change_count)
        self._hosts = hosts
        self._remaining = remaining
        self._scores = scores
        self._seed = seed
        self._selected = SELECTED_HOSTS if hosts.request.wants_alternates else SORTED_HOSTS
        self._leaders: tuple[Ints, Floats, float] | None = None
        self._first: tuple[Ints, Floats] | None = None
        self.filter_counts = counts

    @property
    def passing_count(self) -> int:
        return self.passing_rows.size

    @property
    def passing_rows(self) -> Ints:
        return self._rows_at(self._remaining_positions)

    @property
    def passing_scores(self) -> Floats:
        return self._exact_scores(self._remaining_positions)

    def _positions_of(self, rows: Ints) -> Ints:
        return rows if self._hosts.rows is None else np.searchsorted(self._hosts.rows, rows)

    def first_row(self) -> int | None:
        if not self._scores.size:
            return None
        scores = self._scores if self._remaining is None else np.where(self._remaining, self._scores, -np.inf)
        highest = scores.item(scores.argmax())
        if highest == -np.inf:
            return None
        positions: Ints = (scores >= highest - TIE_NOISE).nonzero()[0]
        best = positions if positions.size == 1 else positions[self._exact_scores(positions).argmax() :]
        return self._rows_at(best[:1]).item(0)

    def best_rows(self, count: int) -> tuple[Ints, Floats]:
        if count > self._selected:
            return order_best(*self._rows_ahead(count)[:2], count)
        if self._first is None or count > self._first[0].size:
            rows, scores, _ = self._leading_rows
            self._first = order_best(rows, scores, max(count, SORTED_HOSTS))
        rows, scores = self._first
        return rows[:count], scores[:count]

    def best_of_cell(self, cell: int, count: int) -> tuple[Ints, Floats]:
        rows, scores, least = self._leading_rows
        is_in_cell = self._cells_of_head == cell
        if least == -np.inf or tally(is_in_cell) >= count:
            rows, scores = order_best(rows[is_in_cell], scores[is_in_cell], count)
            if least == -np.inf or scores[-1] >= least:
                return rows, scores
        rows_of_cell = self._hosts.of_cell(cell)
        remaining = None if self._remaining is None else self._remaining[rows_of_cell]
        positions = rows_of_cell[leading_scores(self._scores[rows_of_cell], remaining, count, TIE_NOISE).positions]
        return order_best(self._rows_at(positions), self._exact_scores(positions), count)

    def scores_of(self, rows: Ints) -> Floats:
        return self._exact_scores(self._positions_of(rows))

    def raw_weights(self, rows: list[int]) -> dict[str, list[float]]:
        positions = rows
        if self._hosts.rows is not None:
            positions = self._positions_of(np.array(rows, np.int64)).tolist()
        return {part.weigher.name: [part.raw.item(position) for position in positions] for part in self.parts}

    @property
    def _leading_rows(self) -> tuple[Ints, Floats, float]:
        """At least so many of the best rows as are selected, unsorted, their scores, and down to which score they are complete."""
        if self._leaders is None:
            self._leaders = self._rows_ahead(self._selected)
        return self._leaders

    @cached_property
    def _cells_of_head(self) -> Ints:
        """The cell of each row of the head."""
        cells: Ints = self._hosts.table.cell[self._leading_rows[0]]
        return cells

    def _rows_ahead(self, count: int) -> tuple[Ints, Floats, float]:
        positions, least = leading_scores(self._scores, self._remaining, count, TIE_NOISE)
        return self._rows_at(positions), self._exact_scores(positions), least

    @property
    def _remaining_positions(self) -> Ints:
        return np.arange(self._scores.size) if self._remaining is None else np.flatnonzero(self._remaining)

    def _exact_scores(self, positions: Ints) -> Floats:
        """Scores with the noise that orders equal ones."""
        scores: Floats = self._scores[positions]
        if self._seed is not None:
            scores = scores + seeded_noise(self._hosts.table.salt[self._rows_at(positions)], self._seed, TIE_NOISE)
        return scores

    def _rows_at(self, positions: Ints) -> Ints:
        return positions if self._hosts.rows is None else self._hosts.rows[positions]


class AskedSingly(Survey):
    """A survey of hosts that also pass filters of one host at a time, asked of the best hosts first until enough pass."""

    def __init__(self, surveyed: Survey, table: HostTable, request: Request, filters: tuple[Filter, ...]) -> None:
        """``surveyed``: the hosts that pass all other filters."""
        super().__init__(surveyed.total, surveyed.parts, surveyed.changes)
        self._surveyed, self._table, self._request, self._filters = surveyed, table, request, filters
        self._passed: dict[int, bool] = {}  # of the rows that were asked about
        self._before = [0] * len(filters)
        self._after = [0] * len(filters)
        self._all: tuple[Ints, Floats] | None = None
        self._counts: tuple[FilterCount, ...] | None = None

    @property
    def filter_counts(self) -> tuple[FilterCount, ...]:
        return (
            (*self._surveyed.filter_counts, *self._count_per_filter(is_whole_fleet=False)) if self._counts is None else self._counts
        )

    @filter_counts.setter
    def filter_counts(self, counts: tuple[FilterCount, ...]) -> None:
        self._counts = counts

    @property
    def passing_count(self) -> int:
        return self.passing_rows.size

    @property
    def passing_rows(self) -> Ints:
        return self._pass_every_row()[0]

    @property
    def passing_scores(self) -> Floats:
        return self._pass_every_row()[1]

    def ask_all(self) -> None:
        self._pass_every_row()

    def _pass_every_row(self) -> tuple[Ints, Floats]:
        if self._all is None:
            rows, scores = self._surveyed.passing_rows, self._surveyed.passing_scores
            passed = self._passing_mask(rows)
            self._all = rows[passed], scores[passed]
            self._counts = (*self._surveyed.filter_counts, *self._count_per_filter(is_whole_fleet=True))
        return self._all

    def best_rows(self, count: int) -> tuple[Ints, Floats]:
        return order_best(*self._all, count) if self._all is not None else self._first_passing(self._surveyed.best_rows, count)

    def best_of_cell(self, cell: int, count: int) -> tuple[Ints, Floats]:
        if self._all is not None:
            rows, scores = self._all
            is_in_cell = self._table.cell[rows] == cell
            return order_best(rows[is_in_cell], scores[is_in_cell], count)
        return self._first_passing(partial(self._surveyed.best_of_cell, cell), count)

    def scores_of(self, rows: Ints) -> Floats:
        return self._surveyed.scores_of(rows)

    def raw_weights(self, rows: list[int]) -> dict[str, list[float]]:
        return self._surveyed.raw_weights(rows)

    def _first_passing(self, best: Callable[[int], tuple[Ints, Floats]], count: int) -> tuple[Ints, Floats]:
        """The first ``count`` that pass. ``best(n)``: the n best before these filters."""
        looked_at = count
        while True:
            rows, scores = best(looked_at)
            places: list[int] = []
            start = 0
            while len(places) < count and start < rows.size:
                further = rows[start : start + count - len(places)]
                places += (start + np.flatnonzero(self._passing_mask(further))).tolist()
                start += further.size
            if len(places) == count or rows.size < looked_at:
                return rows[places], scores[places]
            looked_at *= 4

    def _passing_mask(self, rows: Ints) -> Mask:
        """Which of these rows pass all of these filters."""
        row_numbers = rows.tolist()
        remaining = np.array([row for row in row_numbers if row not in self._passed], np.int64)
        self._passed |= dict.fromkeys(remaining.tolist(), False)
        for number, one in enumerate(self._filters):
            if not remaining.size:
                break
            answers = one.passes(Hosts(self._table, self._request, remaining), self._request)
            self._before[number] += remaining.size
            remaining = remaining if answers is None else remaining[answers]
            self._after[number] += remaining.size
        self._passed |= dict.fromkeys(remaining.tolist(), True)
        return np.fromiter((self._passed[row] for row in row_numbers), np.bool_, len(row_numbers))

    def _count_per_filter(self, *, is_whole_fleet: bool) -> Iterator[FilterCount]:
        """How many hosts each filter was asked of, and how many of these passed. ``is_whole_fleet``: that was all hosts."""
        for one, before, after in zip(self._filters, self._before, self._after, strict=True):
            if before:
                reason = one.reason if after else one.explain_refusal(Hosts(self._table, self._request), self._request)
                yield FilterCount(name=one.name, before=before, after=after, reason=reason, partial=not is_whole_fleet)


BLOCK_COUNT = 1024
"""Number of blocks that scores are divided into: every 1024th score is in the same block."""
UNDIVIDED_LIMIT = 1536
"""Up to this many scores are not divided into blocks, because looking at all of them is faster."""


class Leaders(NamedTuple):
    """Positions, in ascending order, of all scores of at least ``least``, and of some that are slightly lower."""

    positions: Ints
    least: float


def leading_scores(scores: Floats, remaining: Mask | None, count: int, slack: float) -> Leaders:
    """The ``count`` best scores among those ``remaining`` (None: all), and all scores at most ``slack`` below the last of them.

    The result may contain more. The bound is taken from the best score of each block: the ``count``-th best of these is no better
    than the ``count``-th best of all. Hosts that did not pass are among them, so that a lower bound may have to be tried.
    """
    if scores.size > max(2 * count, UNDIVIDED_LIMIT):
        tops = _best_of_blocks(scores)
        enough = count if remaining is None else count * 5 // 4  # most hosts usually pass
        while enough < tops.size:
            tops.partition(-enough)
            least = tops.item(-enough)
            ahead = scores >= least - slack
            if remaining is None:
                return Leaders(ahead.nonzero()[0], least)
            ahead &= remaining
            positions: Ints = ahead.nonzero()[0]
            if tally(scores[positions] >= least) >= count:
                return Leaders(positions, least)
            enough *= 2
    return Leaders(np.arange(scores.size) if remaining is None else remaining.nonzero()[0], -np.inf)


def _best_of_blocks(scores: Floats) -> Floats:
    """The best score of each block, as a new array. Each score after the last full row of blocks is a block of its own."""
    size = scores.size // BLOCK_COUNT
    if size < 2:
        return scores.copy()
    full = size * BLOCK_COUNT
    return np.concatenate((scores[:full].reshape(size, BLOCK_COUNT).max(axis=0), scores[full:]))
