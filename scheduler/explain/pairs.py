"""Find the smallest two changes of a refused request that are enough together, where no single one is.

A pair's size is the sum of the shares of the request that its changes give up (``Relaxation.share``): a whole condition counts as
one. Of equal pairs the first one counts, in the order in which single changes are tried.

One pass tells of each change which filters it would satisfy on which hosts. So the hosts that two changes would open are known
without a pass for each pair, and with them a bound of what the pair gives up. The best pairs by this bound are then tried as single
changes are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import NamedTuple

import msgspec
import numpy as np

from objects.relaxation import Asked, Relaxation, RelaxationPair
from scheduler.engine.driver import SchedulerDriver
from scheduler.explain.counterfactual import (
    AMOUNTS,
    ChangeSearch,
    less_of,
    override_key,
    request_with_amount,
    request_with_spec,
    request_without,
)
from scheduler.explain.refusal_matrix import AlteredRequest, RefusalMatrix
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.table.arrays import Floats, Ints
from scheduler.table.host_table import HostTable

PAIRS_TRIED = 12
"""Maximum number of pairs that are tried on the table, the best by their bounds."""
_SAME_SIZE = 1e-9
_ALTERS = {
    Asked.ZONE: frozenset({"zone"}),
    Asked.CELL: frozenset({"cells", "excluded_cells"}),
    Asked.GROUP: frozenset({"group"}),
    Asked.IGNORED_HOSTS: frozenset({"ignore_hosts"}),
    Asked.HINT: frozenset({"scheduler_hints"}),
    Asked.IMAGE_PROPERTY: frozenset({"image"}),
}
"""The fields of a request that a change alters, by the names in ``reads``."""


class _Candidate(NamedTuple):
    """``bound``: no pair of these two gives up less. ``best``: the row that it is reached on."""

    bound: float
    first: Relaxation
    second: Relaxation
    best: int


class PairSearch:
    """``single``: has found that no single change of the request is enough."""

    def __init__(self, table: HostTable, driver: SchedulerDriver, single: ChangeSearch, asked_count: int) -> None:
        self._table, self._driver, self._single, self._asked_count = table, driver, single, asked_count
        self._request = single.request

    def smallest_pair(self, *, for_tenants: bool) -> RelaxationPair | None:
        """The smallest pair, if there is any. ``for_tenants``: among those that tenants may be told of."""
        best: RelaxationPair | None = None
        candidates = sorted(self._candidate_pairs(for_tenants=for_tenants), key=lambda candidate: candidate.bound)
        for bound, first, second, row in candidates[:PAIRS_TRIED]:
            if best is not None and bound >= best.total_share - _SAME_SIZE:
                break
            pair = self._try_pair(first, second, row)
            if pair is not None and (best is None or pair.total_share < best.total_share - _SAME_SIZE):
                best = pair
        unforced = self._pair_without_force(for_tenants=for_tenants)
        if unforced is not None and (best is None or unforced.total_share < best.total_share - _SAME_SIZE):
            return unforced
        return best

    def _pair_without_force(self, *, for_tenants: bool) -> RelaxationPair | None:
        """Without the forced host, for which not all filters run, and with one change more."""
        if not self._request.is_forced:
            return None
        forced = Relaxation(asked=Asked.FORCED_HOST)
        others = (
            self._new_search(request_without(self._request, forced), self._asked_count, self._single.needed_count).all_changes()
            or ()
        )
        return next((_make_pair(forced, other) for other in others if other.is_for_tenants or not for_tenants), None)

    # -- candidates ------------------------------------------------------------------------------------------------------------

    def _candidate_pairs(self, *, for_tenants: bool) -> Iterator[_Candidate]:
        changes = [change for change in self._possible_changes() if change.is_for_tenants or not for_tenants]
        matrix = RefusalMatrix(
            self._table,
            self._driver,
            self._request,
            [AlteredRequest(self._altered_fields(change), self._with_most(change)) for change in changes],
        )
        if not matrix.rows.size:
            return
        if self._single.needed_count > 1:
            for change, words in zip(changes, matrix.refused, strict=True):
                rows = matrix.rows[words == 0]
                if rows.size:
                    fewer = Relaxation(asked=Asked.SERVERS)
                    yield _Candidate(1 / self._asked_count + self._given_up(change, rows).min(), fewer, change, -1)
        for first, second in combinations(range(len(changes)), 2):
            pair = changes[first], changes[second]
            if not self._concern_the_same(*pair):
                rows = matrix.rows_passing_both(first, second, partial(self._with_both, *pair))
                if rows.size:
                    given_up = self._given_up(pair[0], rows) + self._given_up(pair[1], rows)
                    position = int(given_up.argmin())
                    yield _Candidate(float(given_up[position]), *pair, int(rows[position]))

    def _possible_changes(self) -> list[Relaxation]:
        """What can be changed beside the number of servers and a forced host. Of an amount, how much is not said."""
        amounts = [
            Relaxation(asked=amount_kind)
            for amount_kind, (resource, least) in AMOUNTS.items()
            if getattr(self._request, resource) > least
        ]
        return [
            *amounts,
            *(condition for condition in self._single.droppable_conditions() if condition.asked is not Asked.FORCED_HOST),
        ]

    def _altered_fields(self, change: Relaxation) -> frozenset[str]:
        if change.asked is Asked.EXTRA_SPEC:
            return frozenset({"extra_specs", *(("resources", "amounts") if change.name.startswith("resources:") else ())})
        if change.asked in AMOUNTS:
            dropped = override_key(AMOUNTS[change.asked][0]) in self._request.spec.flavor.extra_specs
            return frozenset({"amounts", *(("extra_specs",) if dropped else ())})
        return _ALTERS[change.asked]

    def _concern_the_same(self, first: Relaxation, second: Relaxation) -> bool:
        """An amount, and the extra spec that asks for it."""
        return first.asked in AMOUNTS and second.asked is Asked.EXTRA_SPEC and second.name == override_key(AMOUNTS[first.asked][0])

    def _given_up(self, change: Relaxation, rows: Ints) -> Floats:
        """The share that one server on each of these rows would have to give up."""
        if change.asked not in AMOUNTS:
            return np.ones(rows.size)
        resource, _ = AMOUNTS[change.asked]
        amount: int = getattr(self._request, resource)
        free = np.floor(np.maximum(Hosts(self._table, self._request, rows).free_room(resource), 0.0))
        share: Floats = np.maximum(amount - free, 0.0) / amount
        return share

    # -- trying ----------------------------------------------------------------------------------------------------------------

    def _try_pair(self, first: Relaxation, second: Relaxation, row: int) -> RelaxationPair | None:
        """The pair with its amounts and places, if it is enough."""
        if second.asked not in AMOUNTS:
            return self._in_turn(first, second)
        if self._single.needed_count == 1 and (exact := self._on_row(first, second, row)) is not None:
            return exact
        both = (self._in_turn(first, second), self._in_turn(second, first))
        return min((pair for pair in both if pair is not None), key=lambda pair: pair.total_share, default=None)

    def _on_row(self, first: Relaxation, second: Relaxation, row: int) -> RelaxationPair | None:
        """Less of two amounts, so that one server fits on this row."""
        request, less = self._request, list[Relaxation]()
        for change in (first, second):
            resource, least = AMOUNTS[change.asked]
            free = float(Hosts(self._table, self._request, np.array([row], np.int64)).free_room(resource)[0])
            enough = min(max(int(free), least), getattr(self._request, resource))
            less.append(less_of(self._request, change.asked, enough))
            request = request_with_amount(request, resource, enough)
        return RelaxationPair(first=less[0], second=less[1]) if self._single.fits_all(request) else None

    def _in_turn(self, first: Relaxation, second: Relaxation) -> RelaxationPair | None:
        """The least of ``first`` that is enough with all of ``second``, and then the least of ``second``."""
        needed_count = 1 if second.asked is Asked.SERVERS else self._single.needed_count
        one = _needed_change(self._new_search(self._with_most(second), self._asked_count, needed_count), first)
        if one is None:
            return None
        if second.asked is Asked.CELL:
            one = msgspec.structs.replace(one, places=one.places[:1])
        if one.asked is Asked.SERVERS:
            remaining = self._asked_count - one.less
            other = _needed_change(self._new_search(self._request, remaining, remaining), second)
        else:
            other = _needed_change(self._new_search(self._request_with(one), self._asked_count, self._single.needed_count), second)
        return None if other is None else _make_pair(one, other)

    def _new_search(self, request: Request, asked_count: int, needed_count: int) -> ChangeSearch:
        return ChangeSearch(self._table, self._driver, request, asked_count, needed_count)

    # -- changed requests ------------------------------------------------------------------------------------------------------

    def _with_most(self, change: Relaxation) -> Request:
        """The request with as much given up as the change can."""
        return _with_most(self._request, change)

    def _with_both(self, first: Relaxation, second: Relaxation) -> Request:
        return _with_most(self._with_most(first), second)

    def _request_with(self, relaxation: Relaxation) -> Request:
        """The request with this change as it is told: less of an amount, or in the first of some zones."""
        if relaxation.asked in AMOUNTS:
            resource, _ = AMOUNTS[relaxation.asked]
            return request_with_amount(self._request, resource, getattr(self._request, resource) - relaxation.less)
        changed = request_without(self._request, relaxation)
        if relaxation.asked is Asked.ZONE and relaxation.places:
            [zone, *_] = relaxation.places
            changed = request_with_spec(changed, msgspec.structs.replace(changed.spec, availability_zone=zone))
            changed.zone = self._table.zone_number(zone)
        return changed


_ORDER = {kind: number for number, kind in enumerate(Asked)}


def _make_pair(one: Relaxation, other: Relaxation) -> RelaxationPair:
    first, second = sorted((one, other), key=lambda relaxation: _ORDER[relaxation.asked])
    return RelaxationPair(first=first, second=second)


def _with_most(request: Request, change: Relaxation) -> Request:
    if change.asked is Asked.SERVERS:
        return request
    if change.asked in AMOUNTS:
        return request_with_amount(request, *AMOUNTS[change.asked])
    return request_without(request, change)


def _needed_change(search: ChangeSearch, change: Relaxation) -> Relaxation | None:
    """The change as far as it is needed, if it is enough."""
    if change.asked is Asked.SERVERS:
        return search.with_fewer_servers()
    return search.with_less_amount(change.asked) if change.asked in AMOUNTS else search.without_condition(change)
