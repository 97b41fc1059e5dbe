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
    scale_between,
    scale_weights,
    weigh_hosts,
)
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.framework.members import NOBODY
from scheduler.framework.weigher import Weigher
from scheduler.table.arrays import Floats, Ints, Mask, mix_bits, tally
from scheduler.table.host_table import HostTable
from scheduler.table.kernels import order_best, seeded_noise

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

    ``passing_rows``: these, in order. ``passing_count``: those of them that pass, and their ``scores``, without noise. ``others``:
    what the scores of all other rows gain. ``count_filters``: how many rows are refused where, as ``KeptRows.tallied`` says it.
    ``silent``: the positions of filters that the request does not use.
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

    def renewed_copy(self) -> KeptRows:
        """The same, to be made anew."""
        return KeptRows(self.table, self._chain, self.current_request())

    def current_request(self) -> Request:
        """The request as it would be asked now."""
        return replace(self._request, alive_since=max(self.asked_at, self.table.up_since), _memory={})

    def build_rows(self) -> Iterator[None]:
        """Judge all rows, a page at each step. What happens to the table between two steps is made good for in ``catch_up``."""
        table = self.table
        now = self.current_request()
        self._since = now.alive_since
        table.hosts_up(self._since)
        self._terms = self._terms_now(now)
        self._size, self.changes = table.size, table.change_count
        self._facets, self._meaning, self._order = len(table.facets), table.current_aggregates.meaning, table.by_cell
        self._codes: Any = np.full(self._order.room, _UNREPORTED, np.uint8)
        self._counts: Ints = np.zeros(_PASSES + 1, np.int64)
        self._scores = np.full(-(-self._order.room // BLOCK) * BLOCK, -np.inf)
        ranges: dict[Weigher, _Range] = {}
        self._answering: tuple[bool, ...] | None = None
        for hosts, places in self._host_pages():
            codes, mask, answering = self._judge_hosts(hosts)
            if self._answering not in (None, answering):
                return
            self._answering = answering
            self._codes[places] = codes
            self._counts += np.bincount(codes, minlength=_PASSES + 1)
            self._widen_ranges(ranges, self._active_weighers(), hosts, mask)
            yield
            if not self._is_current(self.current_request()):
                return
        keys = table.current_aggregates.keys
        parts: list[WeigherScale] = []
        for one, (low, high) in ranges.items():
            if not math.isfinite(low + high):
                return
            parts.append(scale_between(one, None if one.option in keys else one.weight_multiplier, low, high))
        self.parts = tuple(parts)
        self._silent = tuple(one for one in self._active_weighers() if one not in ranges)
        if self.passing_count:
            for hosts, places in self._host_pages():
                scores = self._total_scores(hosts)
                scores[self._codes[places] != _PASSES] = -np.inf
                self._scores[places] = scores
                yield
                if not self._is_current(self.current_request()):
                    return
        self._blocks = self._scores.reshape(-1, BLOCK)
        self._tops: Floats = self._blocks.max(axis=1)
        self.is_made = True

    def _host_pages(self) -> Iterator[tuple[Hosts, Ints]]:
        """All rows, with their places."""
        for start in range(0, self._size, PAGE_SIZE):
            end = min(start + PAGE_SIZE, self._size)
            yield Hosts.rows_between(self.table, self.current_request(), start, end), self._order.places[start:end]

    def _active_weighers(self) -> list[Weigher]:
        keys = self.table.current_aggregates.keys
        return [one for one in self._weighers if one.option in keys or one.weight_multiplier != 0.0]

    def _widen_ranges(self, ranges: dict[Weigher, _Range], weighers: list[Weigher], hosts: Hosts, mask: Mask) -> None:
        """Let the weighers' ranges contain the raw weights of these hosts, as far as they pass."""
        for one in weighers:
            raw = one.weigh(hosts, hosts.request)
            if raw is not None:
                passing_raws = raw[mask]
                before = ranges.get(one, _NOTHING)
                ranges[one] = before.with_those(passing_raws) if passing_raws.size else before

    def _total_scores(self, hosts: Hosts) -> Floats:
        scores = np.zeros(len(hosts))
        for part in self.parts:
            raw = part.weigher.weigh(hosts, hosts.request)
            if raw is not None:
                scores = part.add_scores(scores, hosts, raw)
        return scores

    @property
    def memory_bytes(self) -> int:
        size: int = self._scores.nbytes + self._codes.nbytes
        return size

    @property
    def passing_count(self) -> int:
        """How many rows pass."""
        return int(self._counts[_PASSES])

    @property
    def passing_rows(self) -> Ints:
        """Those that pass."""
        passed: Mask = self._codes[self._order.places[: self._size]] == _PASSES
        return np.flatnonzero(passed)

    def _terms_now(self, request: Request) -> tuple[tuple[float, ...] | None, ...]:
        """What the weights depend on of the fleet as a whole."""
        return tuple([one.cached_terms(self.table, request) for one in self._of_fleet])

    def _is_current(self, request: Request) -> bool:
        """Whether changed rows are all that has changed."""
        table = self.table
        if (
            table.by_cell is not self._order
            or table.current_aggregates.meaning is not self._meaning
            or len(table.facets) != self._facets
        ):
            return False
        return self._terms_now(request) == self._terms

    def catch_up(self, table: HostTable, request: Request, beyond: int = 0) -> bool:
        """Look at what has changed since the last time, if it is more than ``beyond`` rows. False: make it anew."""
        table.hosts_up(request.alive_since)  # notes the hosts that went up or down
        if table is not self.table or not self._is_current(request):
            return False
        self._counts[_UNREPORTED] += table.size - self._size
        self._size = table.size
        if table.change_count - self.changes <= beyond:
            return True
        rows = table.rows_since(self.changes, self._size // REBUILT_PART)
        if rows is None:
            return False
        return not rows.size or self._judge_again(Hosts(table, request, rows))

    def is_due(self, since: float) -> bool:
        """Whether it is to be seen whether the scales still hold."""
        return abs(since - self._since) >= SCALES_KEPT_S

    def scales_hold(self, since: float) -> bool:
        """Whether they do, as far as that is to be seen now."""
        return not self.is_due(since) or self.check_scales(list, since)

    def check_scales(self, run: Callable[[Iterator[None]], object], since: float) -> bool:
        """Whether the scales still hold. ``run``: takes all steps, each of which needs the lock."""
        self._since = since
        ranges: dict[Weigher, _Range] = {}
        run(self._collect_ranges(ranges))
        return self.passing_count > 0 and all(self._still_holds(part, ranges.get(part.weigher)) for part in self.parts)

    def _collect_ranges(self, ranges: dict[Weigher, _Range]) -> Iterator[None]:
        weighers = [part.weigher for part in self.parts]
        for hosts, places in self._host_pages():
            self._widen_ranges(ranges, weighers, hosts, self._codes[places] == _PASSES)
            yield

    @staticmethod
    def _still_holds(part: WeigherScale, now: _Range | None) -> bool:
        if now is None:
            return False
        new = scale_between(part.weigher, part.multiplier, now.low, now.high)
        return max(abs(new.low - part.low), abs(new.low + new.span - part.low - part.span)) <= SCALES_OFF * part.span

    def _judge_again(self, hosts: Hosts) -> bool:
        """Judge these hosts again; False if that cannot be told from them alone."""
        codes, mask, answering = self._judge_hosts(hosts)
        if answering != self._answering:
            return False
        scores = self._total_scores(hosts)
        if any(one.weigh(hosts, hosts.request) is not None for one in self._silent) or not np.isfinite(scores[mask]).all():
            return False
        scores[~mask] = -np.inf
        places = self._order.places[hosts.rows]
        self._counts += np.bincount(codes, minlength=_PASSES + 1) - np.bincount(self._codes[places], minlength=_PASSES + 1)
        self._codes[places] = codes
        self._scores[places] = scores
        blocks = np.unique(places // BLOCK)
        self._tops[blocks] = self._blocks[blocks].max(axis=1)
        self.changes = self.table.change_count
        return True

    def _judge_hosts(self, hosts: Hosts) -> tuple[Any, Mask, tuple[bool, ...]]:
        """The code of each of the hosts, which of them pass, and which filters had an answer."""
        codes = np.full(len(hosts), _PASSES, np.uint8)
        answers = [one.passes(hosts, hosts.request) for one in self._filters]
        for number in reversed(range(len(answers))):  # so that the first that refuses a host is the last to say so
            passed = answers[number]
            if passed is not None:
                np.putmask(codes, ~passed, number + _FIRST_FILTER)
        np.putmask(codes, ~hosts.is_eligible, _UNMAPPED)
        np.putmask(codes, hosts.cell_numbers < 0, _UNREPORTED)
        return codes, codes == _PASSES, tuple([answer is not None for answer in answers])

    # -- answers -----------------------------------------------------------------------------------------------------------------

    def survey_request(self, chain: Chain, request: Request, seed: int | None) -> Survey | None:
        """What it says for one request. None: it passes no host, or that needs a pass over the fleet."""
        counts = self._tally_refusals(chain)
        named, weighing = self._rows_apart(chain, request)
        silent = frozenset(chain.own_filters).difference([position for position, _, _ in named])
        if not named and not weighing:
            return KeptSurvey(self, chain, request, seed, _Apart(_NO_ROWS, _NO_ROWS, _NO_SCORES, 0.0, counts, (), silent))
        concerned = [rows for _, rows, _ in named] + [rows for _, rows in weighing]
        rows = concerned[0] if len(concerned) == 1 else np.unique(np.concatenate(concerned))
        by_number: Ints = np.array(counts, np.int64)
        before = self._numbers_by_code(chain)[self._codes[self._order.places[rows]]]
        by_number -= np.bincount(before, minlength=by_number.size)
        after = before.copy()
        pass_alone = False
        for position, its, is_alone in named:
            number = position + _FIRST_FILTER
            refused = _is_among(rows, its) != is_alone
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
            scores, parts = weigh_hosts(chain.weighers, hosts, request, None)
            return FleetSurvey(hosts, None, scores, parts, self.count_filters(chain, counts, silent), seed)
        apart = _Apart(rows, passing, _NO_SCORES, 0.0, counts, (), silent)
        return self._with_scores(chain, request, seed, apart, weighing, others)

    def _with_scores(
        self, chain: Chain, request: Request, seed: int | None, apart: _Apart, weighing: list[tuple[Weigher, Ints]], others: int
    ) -> Survey | None:
        """``others``: how many rows pass besides those that are told apart."""
        keys, hosts = self.table.current_aggregates.keys, Hosts(self.table, request, apart.passing)
        scores: Floats = self._scores[self._order.places[apart.passing]]
        gain, parts = 0.0, list[WeigherScale]()
        for one, _ in weighing:
            if one.option in keys:
                return None
            raw = one.weigh(hosts, request) if one.weight_multiplier else None
            if raw is None:
                continue
            part = scale_weights(one, np.append(raw, 0.0) if others else raw, one.weight_multiplier, None)
            part.raw = _NO_SCORES
            parts.append(part)
            scores = part.add_scores(scores, hosts, raw)
            gain = part.add_scores(np.full(1, gain), hosts, np.zeros(1)).item(0)
        return KeptSurvey(self, chain, request, seed, apart._replace(scores=scores, others=gain, parts=tuple(parts)))

    def _rows_apart(self, chain: Chain, request: Request) -> tuple[list[tuple[int, Ints, bool]], list[tuple[Weigher, Ints]]]:
        """Filters, by position, and weighers that tell some rows apart, and which."""
        named: list[tuple[int, Ints, bool]] = []
        weighing: list[tuple[Weigher, Ints]] = []
        rows_of: dict[tuple[str, ...], Ints] = {}
        own_filters = [(position, chain.at_once[position]) for position in chain.own_filters]
        every = {one.row_inputs for _, one in own_filters} | {one.row_inputs for one in chain.own_weighers}
        for inputs in every:
            if has_inputs(inputs, request):
                rows_of[inputs] = singled_out(inputs, self.table, request)
        for position, one in own_filters:
            rows = rows_of.get(one.row_inputs)
            named_rows = exceptions_of(one, self.table, request, rows) if rows is not None else None
            if named_rows is not None:
                named.append((position, *named_rows))
        for weigher in chain.own_weighers:
            rows = rows_of.get(weigher.row_inputs)
            if rows is not None and weigher.weigh(Hosts(self.table, request, rows[:1]), request) is not None:
                weighing.append((weigher, rows))
        return named, weighing

    def _numbers_by_code(self, chain: Chain) -> Ints:
        """By code: the same with all filters of the chain numbered, and after them what passes."""
        numbers = np.zeros(_PASSES + 1, np.int64)
        numbers[_UNMAPPED] = _UNMAPPED
        numbers[_FIRST_FILTER : _FIRST_FILTER + len(chain.shared)] = np.array(chain.shared, np.int64) + _FIRST_FILTER
        numbers[_PASSES] = _FIRST_FILTER + len(chain.at_once)
        return numbers

    def _tally_refusals(self, chain: Chain) -> list[int]:
        """How many rows are refused where: by these numbers, the last for those that pass."""
        by_code: list[int] = self._counts.tolist()
        by_number = by_code[:_FIRST_FILTER] + [0] * len(chain.at_once) + by_code[_PASSES:]
        for position, count in zip(chain.shared, by_code[_FIRST_FILTER:], strict=False):
            by_number[position + _FIRST_FILTER] = count
        return by_number

    def count_filters(self, chain: Chain, by_number: list[int], unused: frozenset[int]) -> tuple[FilterCount, ...]:
        """How many hosts each filter left, as a pass over the fleet counts them. ``unused``: filters with no answer."""
        reported = self._size - by_number[_UNREPORTED]
        remaining = reported - by_number[_UNMAPPED]
        filter_counts: list[FilterCount] = []
        if remaining < reported:
            filter_counts.append(FilterCount(name=UNMAPPED.name, before=reported, after=remaining, reason=UNMAPPED.reason))
        silent = unused | {position for position, answers in zip(chain.shared, self._answering or (), strict=True) if not answers}
        for position, one in enumerate(chain.at_once):
            if position not in silent or not one.on_demand:
                refused = by_number[position + _FIRST_FILTER]
                filter_counts.append(FilterCount(name=one.name, before=remaining, after=remaining - refused, reason=one.reason))
                remaining -= refused
        return tuple(filter_counts)

    def best_rows(self, count: int, seed: int | None, gain: float) -> tuple[Ints, Floats]:
        """The ``count`` best rows with their scores and what these ``gain``, best first; all if there are fewer."""
        return self._best_between(0, self._size, count, seed, gain)

    def best_of_cell(self, cell: int, count: int, seed: int | None, gain: float) -> tuple[Ints, Floats]:
        """The same among the rows that one cell reports."""
        if cell in self._order.mixed:
            places = self._order.places[self.table.of_cell(cell)]
            return self._in_order(places[self._scores[places] > -np.inf], count, seed, gain)
        return self._best_between(*self._order.span_of(cell), count, seed, gain)

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
        candidates = first + _some_of(chosen, tops, least, count + TIED_BLOCKS, seed)
        bound = max(least - TIE_NOISE, _LOWEST)
        inside = (self._blocks[candidates] >= bound).nonzero()
        places = [candidates[inside[0]] * BLOCK + inside[1]]
        for edge, until in ((start, first * BLOCK), (last * BLOCK, end)):
            places.append(edge + (self._scores[edge:until] >= bound).nonzero()[0])
        return self._in_order(np.concatenate(places), count, seed, gain)

    def _in_order(self, places: Ints, count: int, seed: int | None, gain: float) -> tuple[Ints, Floats]:
        rows = self._order.rows[places]
        if seed is None:  # equals as they are in the table
            rows.sort()
        return order_best(rows, self.exact_scores(rows, seed, gain), count)

    def exact_scores(self, rows: Ints, seed: int | None, gain: float) -> Floats:
        """Scores with what they ``gain``, and the noise that orders equal ones."""
        scores: Floats = self._scores[self._order.places[rows]]
        if gain:
            scores += gain
        return scores if seed is None else scores + seeded_noise(self.table.salt[rows], seed, TIE_NOISE)


def _some_of(blocks: Ints, tops: Floats, least: float, most: int, seed: int | None) -> Ints:
    """``most`` of these blocks: those with better hosts than ``least``, and then some of the others, by the seed."""
    if blocks.size <= most or seed is None:
        return blocks
    is_better = tops[blocks] > least + TIE_NOISE
    better, equal = blocks[is_better], blocks[~is_better]
    start = mix_bits(seed) % equal.size
    return np.concatenate((better, equal[(start + np.arange(max(most - better.size, 1))) % equal.size]))


_NO_ROWS: Ints = np.zeros(0, np.int64)
_NO_SCORES: Floats = np.zeros(0)


def _is_among(rows: Ints, candidates: Ints) -> Mask:
    """Which of these rows are among ``candidates``, which are in order."""
    if rows is candidates:
        return np.ones(rows.size, np.bool_)
    if not candidates.size:
        return np.zeros(rows.size, np.bool_)
    matches: Mask = candidates[np.minimum(candidates.searchsorted(rows), candidates.size - 1)] == rows
    return matches


class KeptSurvey(Survey):
    """What a kept survey says for one request. Only the best hosts and the counts are as they were when the request came."""

    def __init__(self, rows: KeptRows, chain: Chain, request: Request, seed: int | None, apart: _Apart) -> None:
        super().__init__(len(rows.table), rows.parts + apart.parts, rows.changes)
        self._rows = rows
        self._chain = chain
        self._request = request
        self._seed = seed
        self._apart = apart
        self._first: tuple[Ints, Floats] = self._merge_best(rows.best_rows, SORTED_HOSTS, apart.passing, apart.scores)
        self._counts: tuple[FilterCount, ...] | None = None

    @property
    def passing_count(self) -> int:
        return self._apart.counts[-1]

    @property
    def filter_counts(self) -> tuple[FilterCount, ...]:
        if self._counts is None:
            self._counts = self._rows.count_filters(self._chain, self._apart.counts, self._apart.silent)
        return self._counts

    @filter_counts.setter
    def filter_counts(self, counts: tuple[FilterCount, ...]) -> None:
        self._counts = counts

    @property
    def passing_rows(self) -> Ints:
        rows, apart = self._rows.passing_rows, self._apart
        if apart.rows.size:
            rows = np.sort(np.concatenate((rows[~_is_among(rows, apart.rows)], apart.passing)))
        return rows

    @property
    def passing_scores(self) -> Floats:
        return self.scores_of(self.passing_rows)

    def best_rows(self, count: int) -> tuple[Ints, Floats]:
        if count > self._first[0].size and self._first[0].size < self.passing_count:
            self._first = self._merge_best(self._rows.best_rows, count, self._apart.passing, self._apart.scores)
        rows, scores = self._first
        return rows[:count], scores[:count]

    def best_of_cell(self, cell: int, count: int) -> tuple[Ints, Floats]:
        is_in_cell = self._rows.table.cell[self._apart.passing] == cell
        return self._merge_best(
            partial(self._rows.best_of_cell, cell), count, self._apart.passing[is_in_cell], self._apart.scores[is_in_cell]
        )

    def _merge_best(
        self, best: Callable[[int, int | None, float], tuple[Ints, Floats]], count: int, own_rows: Ints, scores: Floats
    ) -> tuple[Ints, Floats]:
        """The best of what ``best`` says of other rows, and of the ``own_rows`` ones."""
        apart = self._apart
        if not apart.rows.size:
            return best(count, self._seed, apart.others)
        looked_at = count + SORTED_HOSTS
        while True:
            rows, scores_found = best(looked_at, self._seed, apart.others)
            others = ~_is_among(rows, apart.rows)
            if tally(others) >= count or rows.size < looked_at:
                break
            looked_at *= 4
        rows, scores_found = rows[others], scores_found[others]
        least = scores_found.item(count - 1) if rows.size >= count else -np.inf
        if own_rows.size > count:
            least = max(least, np.partition(scores, -count).item(-count))
        if least > -np.inf:
            near = scores >= least - TIE_NOISE  # none of the other own rows can be among so many best
            own_rows, scores = own_rows[near], scores[near]
        if not own_rows.size:
            return rows[:count], scores_found[:count]
        rows, scores_found = np.concatenate((rows, own_rows)), np.concatenate((scores_found, self._noisy_scores(own_rows, scores)))
        if self._seed is None:  # equals as they are in the table
            order = rows.argsort()
            rows, scores_found = rows[order], scores_found[order]
        return order_best(rows, scores_found, count)

    def _noisy_scores(self, rows: Ints, scores: Floats) -> Floats:
        return scores if self._seed is None else scores + seeded_noise(self._rows.table.salt[rows], self._seed, TIE_NOISE)

    def scores_of(self, rows: Ints) -> Floats:
        apart = self._apart
        scores = self._rows.exact_scores(rows, self._seed, apart.others)
        is_apart = _is_among(rows, apart.rows)
        if is_apart.any():
            scores[is_apart] = self._noisy_scores(rows[is_apart], apart.scores[apart.passing.searchsorted(rows[is_apart])])
        return scores

    def raw_weights(self, rows: list[int]) -> dict[str, list[float]]:
        hosts = Hosts(self._rows.table, self._request, np.array(rows, np.int64))
        raws_by_weigher: dict[str, list[float]] = {}
        for part in self.parts:
            raw = part.weigher.weigh(hosts, self._request)
            raws_by_weigher[part.weigher.name] = [part.low] * len(rows) if raw is None else raw.astype(np.float64).tolist()
        return raws_by_weigher
