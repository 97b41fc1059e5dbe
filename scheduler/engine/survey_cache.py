"""One survey of the fleet that is kept up to date: the score of each row, and the best score of each block of rows.

A decision then costs a few rows and blocks, not a pass over the fleet. It says what a pass would say, but for two things: scales of
raw weights are those of some seconds ago, and of very many equal hosts the seed leaves those of some blocks.

Members of a group and hosts that a request excludes are told apart when it comes: see ``_Apart``.

Everything needs the table's lock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from objects.decision import FilterCount
from scheduler.engine.chain import Chain
from scheduler.engine.row_inputs import exceptions_of, has_inputs, singled_out
from scheduler.engine.survey import (
    SORTED_HOSTS,
    TIE_NOISE,
    UNMAPPED,
    FleetSurvey,
    Survey,
    WeigherScale,
    scale,
    scale_between,
    weighed,
)
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.framework.members import NOBODY
from scheduler.framework.weigher import Weigher
from scheduler.table.arrays import Floats, Ints, Mask, mixed, tally
from scheduler.table.host_table import HostTable
from scheduler.table.kernels import noise, ordered

SCALES_KEPT_S = 10.0
"""Seconds after which it is seen whether the scales of raw weights still hold."""
SCALES_OFF = 0.01
"""They do if no end of them has moved by more than this part of its span."""
REBUILT_PART = 20
"""If more than one in so many hosts have changed, the survey is made anew."""
PAGE_SIZE = 16384
"""Hosts judged in one hold of the lock, where a survey is made beside decisions."""
BLOCK = 256
"""Rows of a block."""
TIED_BLOCKS = 8
"""Blocks looked at beyond those that are needed, where many blocks have equally good hosts."""
_LOWEST = -np.finfo(np.float64).max
_UNREPORTED, _UNMAPPED, _FIRST_FILTER, _PASSES = 0, 1, 2, 255
"""Why a row may not be chosen: no cell reports it; it is not mapped; the number of the first filter that refuses it; or it may."""


class _Range(NamedTuple):
    """The lowest and highest raw weight of a weigher among the hosts that pass."""

    low: float
    high: float

    def with_those(self, raw: Floats) -> _Range:
        return _Range(min(self.low, float(raw.min())), max(self.high, float(raw.max())))


_NOTHING = _Range(math.inf, -math.inf)


class _Apart(NamedTuple):
    """What one request says of some rows, in its own words: hosts that it excludes, and those with members of its group.

    ``rows``: these, in order. ``passing``: those of them that pass, and their ``scores``, without noise. ``others``: what the
    scores of all other rows gain. ``counts``: how many rows are refused where, as ``KeptRows.tallied`` says it. ``silent``: the
    positions of filters that the request does not use.
    """

    rows: Ints
    passing: Ints
    scores: Floats
    others: float
    counts: list[int]
    parts: tuple[WeigherScale, ...]
    silent: frozenset[int]


class KeptRows:
    """The rows of a table, as the filters and weighers judge them for one shape.

    They are at the places of ``table.by_cell``. The score of one that is refused is -inf. ``parts``: without raw weights.
    ``asked_at``: the ``alive_since`` of the latest request.
    """

    def __init__(self, table: HostTable, chain: Chain, request: Request) -> None:
        self.table = table
        self._chain = chain
        self._filters, self._weighers = chain.shared_filters, chain.shared_weighers
        self._of_fleet = tuple(one for one in chain.shared_weighers if one.of_fleet)
        # the request itself may be asked under assumptions later, to find out why it is refused
        self._request = replace(request, members=NOBODY, in_cells={}, _memory={})
        self.asked_at = self._since = request.alive_since
        self.parts: tuple[WeigherScale, ...] = ()
        self.is_made = False
        self.changes = 0

    def again(self) -> KeptRows:
        """The same, to be made anew."""
        return KeptRows(self.table, self._chain, self.request())

    def request(self) -> Request:
        """The request as it would be asked now."""
        return replace(self._request, alive_since=max(self.asked_at, self.table.up_since), _memory={})

    def make(self) -> Iterator[None]:
        """Judge all rows, a page at each step. What happens to the table between two steps is made good for in ``catch_up``."""
        table = self.table
        now = self.request()
        self._since = now.alive_since
        table.up(self._since)
        self._terms = self._terms_now(now)
        self._size, self.changes = table.size, table.changes
        self._facets, self._meaning, self._order = len(table.facets), table.aggregates.meaning, table.by_cell
        self._codes: Any = np.full(self._order.room, _UNREPORTED, np.uint8)
        self._counts: Ints = np.zeros(_PASSES + 1, np.int64)
        self._scores = np.full(-(-self._order.room // BLOCK) * BLOCK, -np.inf)
        ranges: dict[Weigher, _Range] = {}
        self._answering: tuple[bool, ...] | None = None
        for hosts, places in self._pages():
            codes, mask, answering = self._judged(hosts)
            if self._answering not in (None, answering):
                return
            self._answering = answering
            self._codes[places] = codes
            self._counts += np.bincount(codes, minlength=_PASSES + 1)
            self._widen(ranges, self._weighing(), hosts, mask)
            yield
            if not self._is_current(self.request()):
                return
        keys = table.aggregates.keys
        parts: list[WeigherScale] = []
        for one, (low, high) in ranges.items():
            if not math.isfinite(low + high):
                return
            parts.append(scale_between(one, None if one.option in keys else one.multiplier, low, high))
        self.parts = tuple(parts)
        self._silent = tuple(one for one in self._weighing() if one not in ranges)
        if self.passing:
            for hosts, places in self._pages():
                scores = self._weighed(hosts)
                scores[self._codes[places] != _PASSES] = -np.inf
                self._scores[places] = scores
                yield
                if not self._is_current(self.request()):
                    return
        self._blocks = self._scores.reshape(-1, BLOCK)
        self._tops: Floats = self._blocks.max(axis=1)
        self.is_made = True

    def _pages(self) -> Iterator[tuple[Hosts, Ints]]:
        """All rows, with their places."""
        for start in range(0, self._size, PAGE_SIZE):
            end = min(start + PAGE_SIZE, self._size)
            yield Hosts.between(self.table, self.request(), start, end), self._order.places[start:end]

    def _weighing(self) -> list[Weigher]:
        keys = self.table.aggregates.keys
        return [one for one in self._weighers if one.option in keys or one.multiplier != 0.0]

    def _widen(self, ranges: dict[Weigher, _Range], weighers: list[Weigher], hosts: Hosts, mask: Mask) -> None:
        """Let the weighers' ranges contain the raw weights of these hosts, as far as they pass."""
        for one in weighers:
            raw = one.weigh(hosts, hosts.request)
            if raw is not None:
                left = raw[mask]
                before = ranges.get(one, _NOTHING)
                ranges[one] = before.with_those(left) if left.size else before

    def _weighed(self, hosts: Hosts) -> Floats:
        scores = np.zeros(len(hosts))
        for part in self.parts:
            raw = part.weigher.weigh(hosts, hosts.request)
            if raw is not None:
                scores = part.added(scores, hosts, raw)
        return scores

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
        passed: Mask = self._codes[self._order.places[: self._size]] == _PASSES
        return np.flatnonzero(passed)

    def _terms_now(self, request: Request) -> tuple[tuple[float, ...] | None, ...]:
        """What the weights depend on of the fleet as a whole."""
        return tuple([one.terms(self.table, request) for one in self._of_fleet])

    def _is_current(self, request: Request) -> bool:
        """Whether changed rows are all that has changed."""
        table = self.table
        if table.by_cell is not self._order or table.aggregates.meaning is not self._meaning or len(table.facets) != self._facets:
            return False
        return self._terms_now(request) == self._terms

    def catch_up(self, table: HostTable, request: Request, beyond: int = 0) -> bool:
        """Look at what has changed since the last time, if it is more than ``beyond`` rows. False: make it anew."""
        table.up(request.alive_since)  # notes the hosts that went up or down
        if table is not self.table or not self._is_current(request):
            return False
        self._counts[_UNREPORTED] += table.size - self._size
        self._size = table.size
        if table.changes - self.changes <= beyond:
            return True
        rows = table.rows_since(self.changes, self._size // REBUILT_PART)
        if rows is None:
            return False
        return not rows.size or self._take(Hosts(table, request, rows))

    def is_due(self, since: float) -> bool:
        """Whether it is to be seen whether the scales still hold."""
        return abs(since - self._since) >= SCALES_KEPT_S

    def scales_hold(self, since: float) -> bool:
        """Whether they do, as far as that is to be seen now."""
        return not self.is_due(since) or self.check(list, since)

    def check(self, run: Callable[[Iterator[None]], object], since: float) -> bool:
        """Whether the scales still hold. ``run``: takes all steps, each of which needs the lock."""
        self._since = since
        ranges: dict[Weigher, _Range] = {}
        run(self._ranges(ranges))
        return self.passing > 0 and all(self._still_holds(part, ranges.get(part.weigher)) for part in self.parts)

    def _ranges(self, ranges: dict[Weigher, _Range]) -> Iterator[None]:
        weighers = [part.weigher for part in self.parts]
        for hosts, places in self._pages():
            self._widen(ranges, weighers, hosts, self._codes[places] == _PASSES)
            yield

    @staticmethod
    def _still_holds(part: WeigherScale, now: _Range | None) -> bool:
        if now is None:
            return False
        new = scale_between(part.weigher, part.multiplier, now.low, now.high)
        return max(abs(new.low - part.low), abs(new.low + new.span - part.low - part.span)) <= SCALES_OFF * part.span

    def _take(self, hosts: Hosts) -> bool:
        """Judge these hosts again; False if that cannot be told from them alone."""
        codes, mask, answering = self._judged(hosts)
        if answering != self._answering:
            return False
        scores = self._weighed(hosts)
        if any(one.weigh(hosts, hosts.request) is not None for one in self._silent) or not np.isfinite(scores[mask]).all():
            return False
        scores[~mask] = -np.inf
        places = self._order.places[hosts.rows]
        self._counts += np.bincount(codes, minlength=_PASSES + 1) - np.bincount(self._codes[places], minlength=_PASSES + 1)
        self._codes[places] = codes
        self._scores[places] = scores
        blocks = np.unique(places // BLOCK)
        self._tops[blocks] = self._blocks[blocks].max(axis=1)
        self.changes = self.table.changes
        return True

    def _judged(self, hosts: Hosts) -> tuple[Any, Mask, tuple[bool, ...]]:
        """The code of each of the hosts, which of them pass, and which filters had an answer."""
        codes = np.full(len(hosts), _PASSES, np.uint8)
        answers = [one.passes(hosts, hosts.request) for one in self._filters]
        for number in reversed(range(len(answers))):  # so that the first that refuses a host is the last to say so
            passed = answers[number]
            if passed is not None:
                np.putmask(codes, ~passed, number + _FIRST_FILTER)
        np.putmask(codes, ~hosts.eligible, _UNMAPPED)
        np.putmask(codes, hosts.cell < 0, _UNREPORTED)
        return codes, codes == _PASSES, tuple([answer is not None for answer in answers])

    # -- answers -----------------------------------------------------------------------------------------------------------------

    def survey(self, chain: Chain, request: Request, seed: int | None) -> Survey | None:
        """What it says for one request. None: it passes no host, or that needs a pass over the fleet."""
        counts = self._tallied(chain)
        named, weighing = self._apart(chain, request)
        silent = frozenset(chain.own).difference([position for position, _, _ in named])
        if not named and not weighing:
            return KeptSurvey(self, chain, request, seed, _Apart(_NO_ROWS, _NO_ROWS, _NO_SCORES, 0.0, counts, (), silent))
        concerned = [rows for _, rows, _ in named] + [rows for _, rows in weighing]
        rows = concerned[0] if len(concerned) == 1 else np.unique(np.concatenate(concerned))
        by_number: Ints = np.array(counts, np.int64)
        before = self._numbers(chain)[self._codes[self._order.places[rows]]]
        by_number -= np.bincount(before, minlength=by_number.size)
        after = before.copy()
        pass_alone = False
        for position, its, is_alone in named:
            number = position + _FIRST_FILTER
            refused = _among(rows, its) != is_alone
            after[refused] = np.minimum(after[refused], number)
            if is_alone:
                by_number[number] += by_number[number + 1 :].sum()
                by_number[number + 1 :] = 0
                pass_alone = True
        others = by_number.item(-1)
        by_number += np.bincount(after, minlength=by_number.size)
        counts = by_number.tolist()
        passing = rows[after == by_number.size - 1]
        if not counts[-1]:
            return None
        if pass_alone:
            hosts = Hosts(self.table, request, passing)
            scores, parts = weighed(chain.weighers, hosts, request, None)
            return FleetSurvey(hosts, None, scores, parts, self.counts(chain, counts, silent), seed)
        apart = _Apart(rows, passing, _NO_SCORES, 0.0, counts, (), silent)
        return self._with_scores(chain, request, seed, apart, weighing, others)

    def _with_scores(
        self, chain: Chain, request: Request, seed: int | None, apart: _Apart, weighing: list[tuple[Weigher, Ints]], others: int
    ) -> Survey | None:
        """``others``: how many rows pass besides those that are told apart."""
        keys, hosts = self.table.aggregates.keys, Hosts(self.table, request, apart.passing)
        scores: Floats = self._scores[self._order.places[apart.passing]]
        gain, parts = 0.0, list[WeigherScale]()
        for one, _ in weighing:
            if one.option in keys:
                return None
            raw = one.weigh(hosts, request) if one.multiplier else None
            if raw is None:
                continue
            part = scale(one, np.append(raw, 0.0) if others else raw, one.multiplier, None)
            part.raw = _NO_SCORES
            parts.append(part)
            scores = part.added(scores, hosts, raw)
            gain = part.added(np.full(1, gain), hosts, np.zeros(1)).item(0)
        return KeptSurvey(self, chain, request, seed, apart._replace(scores=scores, others=gain, parts=tuple(parts)))

    def _apart(self, chain: Chain, request: Request) -> tuple[list[tuple[int, Ints, bool]], list[tuple[Weigher, Ints]]]:
        """Filters, by position, and weighers that tell some rows apart, and which."""
        named: list[tuple[int, Ints, bool]] = []
        weighing: list[tuple[Weigher, Ints]] = []
        rows_of: dict[tuple[str, ...], Ints] = {}
        own_filters = [(position, chain.at_once[position]) for position in chain.own]
        every = {one.row_inputs for _, one in own_filters} | {one.row_inputs for one in chain.own_weighers}
        for inputs in every:
            if has_inputs(inputs, request):
                rows_of[inputs] = singled_out(inputs, self.table, request)
        for position, one in own_filters:
            rows = rows_of.get(one.row_inputs)
            found = exceptions_of(one, self.table, request, rows) if rows is not None else None
            if found is not None:
                named.append((position, *found))
        for weigher in chain.own_weighers:
            rows = rows_of.get(weigher.row_inputs)
            if rows is not None and weigher.weigh(Hosts(self.table, request, rows[:1]), request) is not None:
                weighing.append((weigher, rows))
        return named, weighing

    def _numbers(self, chain: Chain) -> Ints:
        """By code: the same with all filters of the chain numbered, and after them what passes."""
        numbers = np.zeros(_PASSES + 1, np.int64)
        numbers[_UNMAPPED] = _UNMAPPED
        numbers[_FIRST_FILTER : _FIRST_FILTER + len(chain.shared)] = np.array(chain.shared, np.int64) + _FIRST_FILTER
        numbers[_PASSES] = _FIRST_FILTER + len(chain.at_once)
        return numbers

    def _tallied(self, chain: Chain) -> list[int]:
        """How many rows are refused where: by these numbers, the last for those that pass."""
        by_code: list[int] = self._counts.tolist()
        by_number = by_code[:_FIRST_FILTER] + [0] * len(chain.at_once) + by_code[_PASSES:]
        for position, count in zip(chain.shared, by_code[_FIRST_FILTER:], strict=False):
            by_number[position + _FIRST_FILTER] = count
        return by_number

    def counts(self, chain: Chain, by_number: list[int], unused: frozenset[int]) -> tuple[FilterCount, ...]:
        """How many hosts each filter left, as a pass over the fleet counts them. ``unused``: filters with no answer."""
        reported = self._size - by_number[_UNREPORTED]
        left = reported - by_number[_UNMAPPED]
        found: list[FilterCount] = []
        if left < reported:
            found.append(FilterCount(name=UNMAPPED.name, before=reported, after=left, reason=UNMAPPED.reason))
        silent = unused | {position for position, answers in zip(chain.shared, self._answering or (), strict=True) if not answers}
        for position, one in enumerate(chain.at_once):
            if position not in silent or not one.on_demand:
                refused = by_number[position + _FIRST_FILTER]
                found.append(FilterCount(name=one.name, before=left, after=left - refused, reason=one.reason))
                left -= refused
        return tuple(found)

    def best(self, count: int, seed: int | None, gain: float) -> tuple[Ints, Floats]:
        """The ``count`` best rows with their scores and what these ``gain``, best first; all if there are fewer."""
        return self._best_between(0, self._size, count, seed, gain)

    def best_of_cell(self, cell: int, count: int, seed: int | None, gain: float) -> tuple[Ints, Floats]:
        """The same among the rows that one cell reports."""
        if cell in self._order.mixed:
            places = self._order.places[self.table.of_cell(cell)]
            return self._in_order(places[self._scores[places] > -np.inf], count, seed, gain)
        return self._best_between(*self._order.span(cell), count, seed, gain)

    def _best_between(self, start: int, end: int, count: int, seed: int | None, gain: float) -> tuple[Ints, Floats]:
        """The same among the rows from one place to before another.

        The last of the ``count`` best is at least as good as the ``count``-th best top of the blocks that are wholly between.
        """
        first, last = -(-start // BLOCK), end // BLOCK
        tops = self._tops[first:last]
        if tops.size <= count:
            return self._in_order(start + (self._scores[start:end] > -np.inf).nonzero()[0], count, seed, gain)
        least = np.partition(tops, -count).item(-count)
        chosen = (tops >= least - TIE_NOISE).nonzero()[0] if least > -np.inf else (tops > -np.inf).nonzero()[0]
        some = first + _some_of(chosen, tops, least, count + TIED_BLOCKS, seed)
        bound = max(least - TIE_NOISE, _LOWEST)
        inside = (self._blocks[some] >= bound).nonzero()
        places = [some[inside[0]] * BLOCK + inside[1]]
        for edge, until in ((start, first * BLOCK), (last * BLOCK, end)):
            places.append(edge + (self._scores[edge:until] >= bound).nonzero()[0])
        return self._in_order(np.concatenate(places), count, seed, gain)

    def _in_order(self, places: Ints, count: int, seed: int | None, gain: float) -> tuple[Ints, Floats]:
        rows = self._order.rows[places]
        if seed is None:  # equals as they are in the table
            rows.sort()
        return ordered(rows, self.exact(rows, seed, gain), count)

    def exact(self, rows: Ints, seed: int | None, gain: float) -> Floats:
        """Scores with what they ``gain``, and the noise that orders equal ones."""
        scores: Floats = self._scores[self._order.places[rows]]
        if gain:
            scores += gain
        return scores if seed is None else scores + noise(self.table.salt[rows], seed, TIE_NOISE)


def _some_of(blocks: Ints, tops: Floats, least: float, most: int, seed: int | None) -> Ints:
    """``most`` of these blocks: those with better hosts than ``least``, and then some of the others, by the seed."""
    if blocks.size <= most or seed is None:
        return blocks
    is_better = tops[blocks] > least + TIE_NOISE
    better, equal = blocks[is_better], blocks[~is_better]
    start = mixed(seed) % equal.size
    return np.concatenate((better, equal[(start + np.arange(max(most - better.size, 1))) % equal.size]))


_NO_ROWS: Ints = np.zeros(0, np.int64)
_NO_SCORES: Floats = np.zeros(0)


def _among(rows: Ints, some: Ints) -> Mask:
    """Which of these rows are among ``some``, which are in order."""
    if rows is some:
        return np.ones(rows.size, np.bool_)
    if not some.size:
        return np.zeros(rows.size, np.bool_)
    found: Mask = some[np.minimum(some.searchsorted(rows), some.size - 1)] == rows
    return found


class KeptSurvey(Survey):
    """What a kept survey says for one request. Only the best hosts and the counts are as they were when the request came."""

    def __init__(self, rows: KeptRows, chain: Chain, request: Request, seed: int | None, apart: _Apart) -> None:
        super().__init__(len(rows.table), rows.parts + apart.parts, rows.changes)
        self._rows = rows
        self._chain = chain
        self._request = request
        self._seed = seed
        self._apart = apart
        self._first: tuple[Ints, Floats] = self._best(rows.best, SORTED_HOSTS, apart.passing, apart.scores)
        self._counts: tuple[FilterCount, ...] | None = None

    @property
    def passing(self) -> int:
        return self._apart.counts[-1]

    @property
    def counts(self) -> tuple[FilterCount, ...]:
        if self._counts is None:
            self._counts = self._rows.counts(self._chain, self._apart.counts, self._apart.silent)
        return self._counts

    def recount(self, counts: tuple[FilterCount, ...]) -> None:
        self._counts = counts

    @property
    def rows(self) -> Ints:
        rows, apart = self._rows.rows, self._apart
        if apart.rows.size:
            rows = np.sort(np.concatenate((rows[~_among(rows, apart.rows)], apart.passing)))
        return rows

    @property
    def scores(self) -> Floats:
        return self.scores_of(self.rows)

    def best(self, count: int) -> tuple[Ints, Floats]:
        if count > self._first[0].size and self._first[0].size < self.passing:
            self._first = self._best(self._rows.best, count, self._apart.passing, self._apart.scores)
        rows, scores = self._first
        return rows[:count], scores[:count]

    def best_of_cell(self, cell: int, count: int) -> tuple[Ints, Floats]:
        theirs = self._rows.table.cell[self._apart.passing] == cell
        return self._best(partial(self._rows.best_of_cell, cell), count, self._apart.passing[theirs], self._apart.scores[theirs])

    def _best(
        self, best: Callable[[int, int | None, float], tuple[Ints, Floats]], count: int, own: Ints, scores: Floats
    ) -> tuple[Ints, Floats]:
        """The best of what ``best`` says of other rows, and of the ``own`` ones."""
        apart = self._apart
        if not apart.rows.size:
            return best(count, self._seed, apart.others)
        looked_at = count + SORTED_HOSTS
        while True:
            rows, found = best(looked_at, self._seed, apart.others)
            others = ~_among(rows, apart.rows)
            if tally(others) >= count or rows.size < looked_at:
                break
            looked_at *= 4
        rows, found = rows[others], found[others]
        least = found.item(count - 1) if rows.size >= count else -np.inf
        if own.size > count:
            least = max(least, np.partition(scores, -count).item(-count))
        if least > -np.inf:
            near = scores >= least - TIE_NOISE  # none of the other own rows can be among so many best
            own, scores = own[near], scores[near]
        if not own.size:
            return rows[:count], found[:count]
        rows, found = np.concatenate((rows, own)), np.concatenate((found, self._own(own, scores)))
        if self._seed is None:  # equals as they are in the table
            order = rows.argsort()
            rows, found = rows[order], found[order]
        return ordered(rows, found, count)

    def _own(self, rows: Ints, scores: Floats) -> Floats:
        return scores if self._seed is None else scores + noise(self._rows.table.salt[rows], self._seed, TIE_NOISE)

    def scores_of(self, rows: Ints) -> Floats:
        apart = self._apart
        scores = self._rows.exact(rows, self._seed, apart.others)
        own = _among(rows, apart.rows)
        if own.any():
            scores[own] = self._own(rows[own], apart.scores[apart.passing.searchsorted(rows[own])])
        return scores

    def raws(self, rows: list[int]) -> dict[str, list[float]]:
        hosts = Hosts(self._rows.table, self._request, np.array(rows, np.int64))
        found: dict[str, list[float]] = {}
        for part in self.parts:
            raw = part.weigher.weigh(hosts, self._request)
            found[part.weigher.name] = [part.low] * len(rows) if raw is None else raw.astype(np.float64).tolist()
        return found
