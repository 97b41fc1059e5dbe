"""What one pass over the fleet found."""

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

NOISE = 1e-9
"""Scores closer than this are equal, and chance decides between them."""
FIRST = 8
"""Best hosts that are put in order at once: more than are told of."""
HEAD = 320
"""Best hosts that are set apart, in no order: enough to find alternates of one cell among them."""


@dataclass(slots=True)
class WeigherScale:
    """One weigher's scale for a batch: ``multiplier * (raw - low) / span``. No span: all hosts weigh the same so far.
    ``floored``: some weigh less than ``low``, which counts as ``low``.

    ``multiplier`` is the host's where aggregates have their own, which is None here. ``raw``: of the hosts surveyed; mostly a
    column of the table itself, which goes with it.
    """

    weigher: Weigher
    raw: Floats
    multiplier: float | None
    low: float
    span: float
    floored: bool = False

    def of(self, hosts: Hosts, raw: Floats) -> Floats:
        """What it adds to the scores of hosts that weigh this."""
        return self.added(None, hosts, raw)

    def added(self, scores: Floats | None, hosts: Hosts, raw: Floats) -> Floats:
        """The same, added to these scores in place if there are any."""
        multiplier = self.weigher.multipliers(hosts) if self.multiplier is None else self.multiplier
        if self.floored:
            raw = np.maximum(raw, self.low)
        return add_scaled(scores, raw, self.low, multiplier / self.span)


def scale(weigher: Weigher, raw: Floats, multiplier: float | None, left: Mask | None) -> WeigherScale:
    """The scale of these raw weights over those hosts that are ``left``; None: all of them."""
    low, high = extremes(raw, left, weigher.least)
    least = weigher.least
    if least is None or low >= least:
        return WeigherScale(weigher, raw, multiplier, low, high - low or 1.0)
    return WeigherScale(weigher, np.maximum(raw, least), multiplier, least, max(high - least, 0.0) or 1.0, floored=True)


def ties(table: HostTable, rows: Ints, seed: int) -> Floats:
    """A little noise that orders rows with equal scores."""
    return noise(table.salt[rows], seed, NOISE)


class Survey:
    """The hosts that could take the first instance, and how good each is.

    ``total``: hosts there are. ``counts``: how many each filter left. ``changes``: those of the table that it has seen.
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
        """``scores`` are those of all ``hosts``, of which the filters have ``left`` some (None: all).

        Equals are put in order by the noise of ``seed``, or stand as in the table (None).
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
        """In the table's order."""
        return self._rows(self._positions)

    @property
    def scores(self) -> Floats:
        """Of each of ``rows``."""
        return self._exact(self._positions)

    def best(self, count: int) -> tuple[Ints, Floats]:
        """The ``count`` best rows, or all where there are fewer, best first, with their scores."""
        if count > HEAD:
            return ordered(*self._ahead(count)[:2], count)
        if self._first is None or count > self._first[0].size:
            rows, scores, _ = self._head
            self._first = ordered(rows, scores, max(count, FIRST))
        rows, scores = self._first
        return rows[:count], scores[:count]

    def best_of_cell(self, cell: int, count: int) -> tuple[Ints, Floats]:
        """The same of those in the cell."""
        rows, scores, least = self._head
        rows, scores = ordered_in(rows, scores, self._hosts.table.cell, cell, count)
        if least == -np.inf or (rows.size == count and scores[-1] >= least):
            return rows, scores
        theirs = self._hosts.of_cell(cell)
        left = None if self._left is None else self._left[theirs]
        positions = theirs[leading(self._scores[theirs], left, count, NOISE).positions]
        return ordered(self._rows(positions), self._exact(positions), count)

    def weights(self, rows: list[int]) -> dict[str, list[float]]:
        """What each weigher adds to the scores of these of its rows, by weigher."""
        positions: list[int] = rows if self._hosts.rows is None else np.searchsorted(self._hosts.rows, rows).tolist()
        return {part.weigher.name: self._added(part, rows, positions) for part in self.parts}

    def _added(self, part: WeigherScale, rows: list[int], positions: list[int]) -> list[float]:
        """Number by number, which is the same and, for a few hosts, a third of the time."""
        raw, low = part.raw, part.low
        if part.multiplier is None or raw.dtype.char != "d":
            hosts = Hosts(self._hosts.table, self._hosts.request, np.array(rows, np.int64))
            several: list[float] = part.of(hosts, raw[positions]).tolist()
            return several
        factor = part.multiplier / part.span
        return [(raw.item(position) - low) * factor for position in positions]

    @property
    def _head(self) -> tuple[Ints, Floats, float]:
        """The ``HEAD`` best rows and some more, in no order, with their scores; and the score from which on all are there."""
        if self._leaders is None:
            self._leaders = self._ahead(HEAD)
        return self._leaders

    def _ahead(self, count: int) -> tuple[Ints, Floats, float]:
        positions, least = leading(self._scores, self._left, count, NOISE)
        return self._rows(positions), self._exact(positions), least

    @property
    def _positions(self) -> Ints:
        return np.arange(self._scores.size) if self._left is None else np.flatnonzero(self._left)

    def _exact(self, positions: Ints) -> Floats:
        """Scores with the noise that orders equals."""
        if self._seed is None:
            scores: Floats = self._scores[positions]
            return scores
        return untied(self._scores, positions, self._hosts.table.salt, self._rows(positions), self._seed, NOISE)

    def _rows(self, positions: Ints) -> Ints:
        return positions if self._hosts.rows is None else self._hosts.rows[positions]


BLOCKS = 1024
"""Blocks that scores are divided into: every 1024th is of the same one."""
WHOLE = 1536
"""So few scores are not divided: that takes longer than to look at all of them."""


class Leaders(NamedTuple):
    """Positions, as they come, of all scores that are at least ``least``, and of some that are a little less."""

    positions: Ints
    least: float


def leading(scores: Floats, left: Mask | None, count: int, slack: float) -> Leaders:
    """The ``count`` best of those ``left`` (None: all), and all that are at most ``slack`` worse than the last of them.

    There may be more of them. The best of each block are looked at first: the ``count``-th best of these is no better than the
    ``count``-th best of all. Those that are not left stand among them, so that it may take another look, further down.
    """
    if scores.size > max(2 * count, WHOLE):
        tops = _best_of_blocks(scores)
        enough = count if left is None else count * 5 // 4  # most hosts are left, as a rule
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
    """The best of each block, to be put in any order; those behind the last full row of blocks are blocks of their own."""
    size = scores.size // BLOCKS
    if size < 2:
        return scores.copy()
    full = size * BLOCKS
    return np.concatenate((scores[:full].reshape(size, BLOCKS).max(axis=0), scores[full:]))
