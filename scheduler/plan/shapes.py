"""Surveys that are kept: a request that asks what an earlier one asked only looks at the hosts that have changed since.

Requests of one *shape* ask the same of every host. A kept survey has the score of each row for its shape, and the best score of
each block of rows. A decision then costs a few rows and blocks, not a pass over the fleet. It says what a pass would say, but for
two things: scales of raw weights are those of some seconds ago, and of very many equal hosts the seed leaves those of some blocks.

Everything needs the table's lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from objects.decision import FilterCount
from scheduler.plan.chain import Chain
from scheduler.plan.request import Request
from scheduler.plan.survey import SORTED_HOSTS, TIE_NOISE, UNMAPPED, Survey, WeigherScale, scale, weighed
from scheduler.table.arrays import Floats, Ints, Mask, mixed
from scheduler.table.host_table import HostTable
from scheduler.table.hosts import Hosts
from scheduler.table.kernels import noise, ordered

KEPT_FROM = 16384
"""Hosts from which surveys are kept. A pass over fewer costs about as much as what it would save."""
KEPT_BYTES = 512 * 1024**2
"""Memory for the latest shapes: each takes nine bytes for each host."""
SHAPES_NOTED = 256
"""Latest shapes that were seen. Only what is asked for a second time is kept."""
SCALES_KEPT_S = 10.0
"""Seconds after which it is seen whether the scales of raw weights still hold."""
SCALES_OFF = 0.01
"""They do if no end of them has moved by more than this part of its span."""
REBUILT_PART = 20
"""If more than one in so many hosts have changed, the survey is made anew."""
BLOCK = 256
"""Rows of a block."""
TIED_BLOCKS = 8
"""Blocks looked at beyond those that are needed, where many blocks have equally good hosts."""

_LOWEST = -np.finfo(np.float64).max
_UNREPORTED, _UNMAPPED, _FIRST_FILTER, _PASSES = 0, 1, 2, 255
"""Why a row may not be chosen: no cell reports it; it is not mapped; the number of the first filter that refuses it; or it may."""

FIELDS: dict[str, Callable[[Request], Hashable]] = {
    "amounts": lambda request: (request.vcpus, request.memory_mb, request.disk_gb),
    "resources": lambda request: tuple(sorted(request.resources.items())),
    "extra_specs": lambda request: tuple(sorted(request.spec.flavor.extra_specs.items())),
    "flavor_name": lambda request: request.spec.flavor.name,
    "image": lambda request: _image(request),
    "project_id": lambda request: request.spec.project_id,
    "zone": lambda request: request.zone,
}
"""What a filter or weigher may name in ``reads``."""


def _image(request: Request) -> Hashable:
    image = request.spec.image
    return None if image is None else (image.id, tuple(sorted(image.properties.items())))


class Shapes:
    """The kept surveys of one driver, the latest last."""

    def __init__(self, kept_from: int = KEPT_FROM) -> None:
        self._kept_from = kept_from
        self._kept: OrderedDict[Hashable, KeptRows] = OrderedDict()
        self._noted: OrderedDict[Hashable, None] = OrderedDict()

    def survey(self, table: HostTable, chain: Chain, request: Request, *, shuffle: bool) -> KeptSurvey | None:
        """None if a pass over the fleet is to answer: for a shape that is new, a refusal, and what cannot be kept."""
        if chain.reads is None or table.size < self._kept_from or not _is_plain(request):
            return None
        key = (chain.at_once, chain.weighers, tuple(FIELDS[name](request) for name in chain.reads))
        rows = self._kept.get(key)
        if rows is None or not rows.catch_up(table, request):
            rows = self._make(key, table, chain, request)
        if rows is None:
            return None
        self._kept.move_to_end(key)
        return KeptSurvey(rows, table, request, request.seed if shuffle else None)

    def _make(self, key: Hashable, table: HostTable, chain: Chain, request: Request) -> KeptRows | None:
        if self._kept.pop(key, None) is None and key not in self._noted:
            self._noted[key] = None
            if len(self._noted) > SHAPES_NOTED:
                self._noted.popitem(last=False)
            return None
        made = KeptRows(table, chain, request)
        if not made.passing:
            return None
        self._kept[key] = made
        while len(self._kept) * made.nbytes > KEPT_BYTES and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return made


def _is_plain(request: Request) -> bool:
    """Whether it makes none of the assumptions under which a refusal is looked into."""
    return not (request.assume_up or request.any_cell or request.unheard_cells)


class KeptRows:
    """The rows of a table, as the filters and weighers judge them for one shape.

    They are at the places of ``table.by_cell``. The score of one that is refused is -inf. ``parts``: without raw weights.
    """

    def __init__(self, table: HostTable, chain: Chain, request: Request) -> None:
        self._table = table
        self._filters = chain.at_once
        self._size, self._since = table.size, request.alive_since
        self._facets, self._aggregates, self._order = len(table.facets), table.aggregates, table.by_cell
        hosts = Hosts(table, request)
        codes, mask, self._answering = self._judged(hosts, request)
        self._codes = codes[self._order.rows]
        self._counts: Ints = np.bincount(codes, minlength=_PASSES + 1)
        self.parts: tuple[WeigherScale, ...] = ()
        self._scores = np.full(-(-self._size // BLOCK) * BLOCK, -np.inf)
        if self.passing:
            scores, parts = weighed(chain.weighers, hosts, request, mask)
            self._scores[: self._size] = np.where(mask, scores, -np.inf)[self._order.rows]
            self.parts = tuple(replace(part, raw=np.zeros(0)) for part in parts)
        weighing = {part.weigher for part in self.parts}
        self._silent = tuple(one for one in chain.weighers if one not in weighing and one.multiplier != 0.0)
        self._blocks = self._scores.reshape(-1, BLOCK)
        self._tops: Floats = self._blocks.max(axis=1)
        self.changes = table.changes

    @property
    def nbytes(self) -> int:
        size: int = self._scores.nbytes + self._codes.nbytes
        return size

    @property
    def passing(self) -> int:
        """How many rows pass."""
        return int(self._counts[_PASSES])

    @property
    def rows(self) -> Ints:
        """Those that pass."""
        return np.sort(self._order.rows[self._codes == _PASSES])

    def catch_up(self, table: HostTable, request: Request) -> bool:
        """Look at what has changed since the last time. False: make it anew."""
        table.up(request.alive_since)  # notes the hosts that went up or down
        if table is not self._table or table.aggregates is not self._aggregates or table.by_cell is not self._order:
            return False
        rows = table.rows_since(self.changes, self._size // REBUILT_PART)
        if rows is None or len(table.facets) != self._facets:
            return False
        if rows.size and not self._take(rows, request):
            return False
        return self.passing > 0 and self._scales_hold(request)

    def _scales_hold(self, request: Request) -> bool:
        if abs(request.alive_since - self._since) < SCALES_KEPT_S:
            return True
        self._since = request.alive_since
        hosts, left = Hosts(self._table, request), (self._codes == _PASSES)[self._order.places]
        for part in self.parts:
            raw = part.weigher.weigh(hosts, request)
            if raw is None:
                return False
            now = scale(part.weigher, raw, part.multiplier, left)
            if max(abs(now.low - part.low), abs(now.low + now.span - part.low - part.span)) > SCALES_OFF * part.span:
                return False
        return True

    def _take(self, rows: Ints, request: Request) -> bool:
        """Judge these rows again; False if that cannot be told from them alone."""
        hosts = Hosts(self._table, request, rows)
        codes, mask, answering = self._judged(hosts, request)
        if answering != self._answering:
            return False
        scores = np.zeros(rows.size)
        for part in self.parts:
            raw = part.weigher.weigh(hosts, request)
            if raw is not None:
                scores = part.added(scores, hosts, raw)
        if any(one.weigh(hosts, request) is not None for one in self._silent) or not np.isfinite(scores[mask]).all():
            return False
        scores[~mask] = -np.inf
        places = self._order.places[rows]
        np.subtract.at(self._counts, self._codes[places], 1)
        np.add.at(self._counts, codes, 1)
        self._codes[places] = codes
        self._scores[places] = scores
        blocks = sorted(set((places // BLOCK).tolist()))
        self._tops[blocks] = self._blocks[blocks].max(axis=1)
        self.changes = self._table.changes
        return True

    def _judged(self, hosts: Hosts, request: Request) -> tuple[Any, Mask, tuple[bool, ...]]:
        """The code of each of the hosts, which of them pass, and which filters had an answer."""
        mask = hosts.eligible.copy()
        codes = np.where(mask, _PASSES, np.where(hosts.cell >= 0, _UNMAPPED, _UNREPORTED)).astype(np.uint8)
        answering: list[bool] = []
        for number, one in enumerate(self._filters, _FIRST_FILTER):
            passed = one.passes(hosts, request)
            answering.append(passed is not None)
            if passed is not None:
                codes[mask & ~passed] = number
                mask &= passed
        return codes, mask, tuple(answering)

    def tallied(self) -> list[int]:
        """How many rows have each code."""
        by_code: list[int] = self._counts.tolist()
        return by_code

    def counts(self, by_code: list[int]) -> tuple[FilterCount, ...]:
        """How many hosts each filter left, as a pass over the fleet counts them."""
        reported = self._size - by_code[_UNREPORTED]
        left = reported - by_code[_UNMAPPED]
        found: list[FilterCount] = []
        if left < reported:
            found.append(FilterCount(name=UNMAPPED.name, before=reported, after=left, reason=UNMAPPED.reason))
        for number, (one, answered) in enumerate(zip(self._filters, self._answering, strict=True), _FIRST_FILTER):
            if answered or not one.on_demand:
                found.append(FilterCount(name=one.name, before=left, after=left - by_code[number], reason=one.reason))
                left -= by_code[number]
        return tuple(found)

    def best(self, count: int, seed: int | None) -> tuple[Ints, Floats]:
        """The ``count`` best rows with their scores, best first; all if there are fewer."""
        return self._best_between(0, self._size, count, seed)

    def best_of_cell(self, cell: int, count: int, seed: int | None) -> tuple[Ints, Floats]:
        """The same among the rows that one cell reports."""
        return self._best_between(*self._order.span(cell), count, seed)

    def _best_between(self, start: int, end: int, count: int, seed: int | None) -> tuple[Ints, Floats]:
        """The same among the rows from one place to before another.

        The last of the ``count`` best is at least as good as the ``count``-th best top of the blocks that are wholly between.
        """
        first, last = -(-start // BLOCK), end // BLOCK
        tops = self._tops[first:last]
        if tops.size <= count:
            return self._in_order(start + (self._scores[start:end] > -np.inf).nonzero()[0], count, seed)
        least = np.partition(tops, -count).item(-count)
        chosen = (tops >= least - TIE_NOISE).nonzero()[0] if least > -np.inf else (tops > -np.inf).nonzero()[0]
        some = first + _some_of(chosen, tops, least, count + TIED_BLOCKS, seed)
        bound = max(least - TIE_NOISE, _LOWEST)
        inside = (self._blocks[some] >= bound).nonzero()
        places = [some[inside[0]] * BLOCK + inside[1]]
        for edge, until in ((start, first * BLOCK), (last * BLOCK, end)):
            places.append(edge + (self._scores[edge:until] >= bound).nonzero()[0])
        return self._in_order(np.concatenate(places), count, seed)

    def _in_order(self, places: Ints, count: int, seed: int | None) -> tuple[Ints, Floats]:
        rows = self._order.rows[places]
        if seed is None:  # equals as they are in the table
            rows.sort()
        return ordered(rows, self.exact(rows, seed), count)

    def exact(self, rows: Ints, seed: int | None) -> Floats:
        """Scores with the noise that orders equal ones."""
        scores: Floats = self._scores[self._order.places[rows]]
        return scores if seed is None else scores + noise(self._table.salt[rows], seed, TIE_NOISE)


def _some_of(blocks: Ints, tops: Floats, least: float, most: int, seed: int | None) -> Ints:
    """``most`` of these blocks: those with better hosts than ``least``, and then some of the others, by the seed."""
    if blocks.size <= most or seed is None:
        return blocks
    is_better = tops[blocks] > least + TIE_NOISE
    better, equal = blocks[is_better], blocks[~is_better]
    start = mixed(seed) % equal.size
    return np.concatenate((better, equal[(start + np.arange(max(most - better.size, 1))) % equal.size]))


class KeptSurvey(Survey):
    """What a kept survey says for one request. Only the best hosts and the counts are as they were when the request came."""

    def __init__(self, rows: KeptRows, table: HostTable, request: Request, seed: int | None) -> None:
        super().__init__(len(table), rows.parts, rows.changes)
        self._rows = rows
        self._table = table
        self._request = request
        self._seed = seed
        self._first: tuple[Ints, Floats] = rows.best(SORTED_HOSTS, seed)
        self._by_code = rows.tallied()
        self._counts: tuple[FilterCount, ...] | None = None

    @property
    def passing(self) -> int:
        return self._rows.passing

    @property
    def counts(self) -> tuple[FilterCount, ...]:
        if self._counts is None:
            self._counts = self._rows.counts(self._by_code)
        return self._counts

    def recount(self, counts: tuple[FilterCount, ...]) -> None:
        self._counts = counts

    @property
    def rows(self) -> Ints:
        return self._rows.rows

    @property
    def scores(self) -> Floats:
        return self._rows.exact(self.rows, self._seed)

    def ask_all(self) -> None:
        """There are none: such requests are not kept."""

    def best(self, count: int) -> tuple[Ints, Floats]:
        if count > self._first[0].size and self._first[0].size < self.passing:
            self._first = self._rows.best(count, self._seed)
        rows, scores = self._first
        return rows[:count], scores[:count]

    def best_of_cell(self, cell: int, count: int) -> tuple[Ints, Floats]:
        return self._rows.best_of_cell(cell, count, self._seed)

    def scores_of(self, rows: Ints) -> Floats:
        return self._rows.exact(rows, self._seed)

    def raws(self, rows: list[int]) -> dict[str, list[float]]:
        hosts = Hosts(self._table, self._request, np.array(rows, np.int64))
        found: dict[str, list[float]] = {}
        for part in self.parts:
            raw = part.weigher.weigh(hosts, self._request)
            found[part.weigher.name] = [part.low] * len(rows) if raw is None else raw.astype(np.float64).tolist()
        return found
