"""The result of one pass over the fleet: the hosts that fit, and their scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from objects.decision import FilterCount
from scheduler.table.arrays import Floats, Ints, Mask, tally
from scheduler.table.host_table import HostTable
from scheduler.table.hosts import Hosts
from scheduler.table.kernels import add_scaled, extremes, noise, ordered, ordered_in, untied
from scheduler.weighers.base import Weigher

TIE_NOISE = 1e-9
"""Amplitude of the noise that orders equal scores: scores closer than this count as equal."""
SORTED_HOSTS = 8
"""Number of best hosts sorted at once: more than an explanation shows."""
SELECTED_HOSTS = 320
"""Number of best hosts selected, unsorted: enough to find the alternates of one cell among them."""


@dataclass(slots=True)
class WeigherScale:
    """One weigher's scale for a batch: ``multiplier * (raw - low) / span``.

    ``raw``: the raw weights of the surveyed hosts. Often a view of a column of the table, which changes with the table.
    ``multiplier``: None if aggregates set their own, so that it differs by host.
    ``span``: 1 if all hosts weigh the same.
    ``floored``: some hosts weigh less than ``low``; they are raised to it.
    """

    weigher: Weigher
    raw: Floats
    multiplier: float | None
    low: float
    span: float
    floored: bool = False

    def of(self, hosts: Hosts, raw: Floats) -> Floats:
        """What the weigher adds to the scores of ``hosts`` with the raw weights ``raw``."""
        return self.added(None, hosts, raw)

    def added(self, scores: Floats | None, hosts: Hosts, raw: Floats) -> Floats:
        """The same, added in place to ``scores`` unless that is None."""
        multiplier = self.weigher.multipliers(hosts) if self.multiplier is None else self.multiplier
        if self.floored:
            raw = np.maximum(raw, self.low)
        return add_scaled(scores, raw, self.low, multiplier / self.span)


def scale(weigher: Weigher, raw: Floats, multiplier: float | None, left: Mask | None) -> WeigherScale:
    """The scale of these raw weights over the hosts that are ``left`` (None: all)."""
    low, high = extremes(raw, left, weigher.least)
    least = weigher.least
    if least is None or low >= least:
        return WeigherScale(weigher, raw, multiplier, low, high - low or 1.0)
    return WeigherScale(weigher, np.maximum(raw, least), multiplier, least, max(high - least, 0.0) or 1.0, floored=True)


def ties(table: HostTable, rows: Ints, seed: int) -> Floats:
    """Noise below ``TIE_NOISE`` that orders rows with equal scores."""
    return noise(table.salt[rows], seed, TIE_NOISE)


class Survey:
    """The hosts that could take the first instance, and how good each is.

    ``total``: hosts in the table. ``counts``: how many each filter left. ``changes``: the table's change counter at the survey.
    """

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
        self.total = len(hosts.table)
        self.counts = counts
        self.parts = parts
        self.changes = hosts.table.changes
        self._hosts = hosts
        self._left = left
        self._scores = scores
        self._seed = seed
        self._leaders: tuple[Ints, Floats, float] | None = None
        self._first: tuple[Ints, Floats] | None = None

    @property
    def rows(self) -> Ints:
        """The rows that passed, in the table's order."""
        return self._rows(self._positions)

    @property
    def scores(self) -> Floats:
        """The score of each of ``rows``."""
        return self._exact(self._positions)

    def best(self, count: int) -> tuple[Ints, Floats]:
        """The ``count`` best rows with their scores, best first; all rows if there are fewer."""
        if count > SELECTED_HOSTS:
            return ordered(*self._ahead(count)[:2], count)
        if self._first is None or count > self._first[0].size:
            rows, scores, _ = self._head
            self._first = ordered(rows, scores, max(count, SORTED_HOSTS))
        rows, scores = self._first
        return rows[:count], scores[:count]

    def best_of_cell(self, cell: int, count: int) -> tuple[Ints, Floats]:
        """The same among the rows of one cell, given by number."""
        rows, scores, least = self._head
        rows, scores = ordered_in(rows, scores, self._hosts.table.cell, cell, count)
        if least == -np.inf or (rows.size == count and scores[-1] >= least):
            return rows, scores
        theirs = self._hosts.of_cell(cell)
        left = None if self._left is None else self._left[theirs]
        positions = theirs[leading(self._scores[theirs], left, count, TIE_NOISE).positions]
        return ordered(self._rows(positions), self._exact(positions), count)

    def weights(self, rows: list[int]) -> dict[str, list[float]]:
        """What each weigher adds to the scores of ``rows``, by the weigher's name."""
        positions: list[int] = rows if self._hosts.rows is None else np.searchsorted(self._hosts.rows, rows).tolist()
        return {part.weigher.name: self._added(part, rows, positions) for part in self.parts}

    def _added(self, part: WeigherScale, rows: list[int], positions: list[int]) -> list[float]:
        """Compute one number at a time where possible: for a few hosts that takes a third of the time, with the same result."""
        raw, low = part.raw, part.low
        if part.multiplier is None or raw.dtype.char != "d":
            hosts = Hosts(self._hosts.table, self._hosts.request, np.array(rows, np.int64))
            several: list[float] = part.of(hosts, raw[positions]).tolist()
            return several
        factor = part.multiplier / part.span
        return [(raw.item(position) - low) * factor for position in positions]

    @property
    def _head(self) -> tuple[Ints, Floats, float]:
        """At least the ``SELECTED_HOSTS`` best rows, unsorted, their scores, and the score down to which the rows are complete."""
        if self._leaders is None:
            self._leaders = self._ahead(SELECTED_HOSTS)
        return self._leaders

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
