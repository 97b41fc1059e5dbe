"""The filters, weighers and settings that a driver gives to the engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from scheduler.filters.base import Filter
from scheduler.plan.request import OPTIONAL, Request
from scheduler.weighers.base import Weigher


class Chain(NamedTuple):
    """The filters and weighers that apply to requests of one shape."""

    filters: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]


class Criteria:
    """Filters in the order in which they run, and weighers.

    ``subset``: the host is drawn at random from this many of the best.
    ``shuffle``: equal scores are ordered at random; otherwise by row.
    """

    def __init__(self, filters: Sequence[Filter], weighers: Sequence[Weigher], *, subset: int, shuffle: bool) -> None:
        self.filters: tuple[Filter, ...] = tuple(filters)
        self.weighers: tuple[Weigher, ...] = tuple(weighers)
        self.cell_wide = any(weigher.cell_wide for weigher in self.weighers)
        self.subset = subset
        self.shuffle = shuffle
        self._chains: dict[tuple[bool, ...], tuple[Chain, Chain]] = {}

    def chain(self, request: Request) -> Chain:
        """The filters for this request, in order, and the weighers.

        A request's shape says which optional fields it has. Each shape's chain is made once. For forced hosts only the filters with
        ``guards_host`` run.
        """
        shape = request.shape
        every, chain = self._chains.get(shape, (None, None))
        if every is None or chain is None or every.filters is not self.filters or every.weighers is not self.weighers:
            given = {name for name, there in zip(OPTIONAL, shape, strict=True) if there}
            chain = Chain(
                tuple(one for one in self.filters if _called(one.applies_when, given) and (one.guards_host or not request.forced)),
                tuple(one for one in self.weighers if _called(one.applies_when, given)),
            )
            self._chains[shape] = Chain(self.filters, self.weighers), chain
        return chain


def _called(applies_when: Collection[str], given: set[str]) -> bool:
    return not applies_when or not given.isdisjoint(applies_when)
