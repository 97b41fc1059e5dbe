"""The filters, weighers and settings that a driver gives to the engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from scheduler.engine.chain import Chain
from scheduler.engine.request_classes import Shapes
from scheduler.framework.batch_request import CONDITIONS, Request
from scheduler.framework.filter import Filter
from scheduler.framework.weigher import Weigher


class _Made(NamedTuple):
    """A chain, and the filters and weighers of the driver that it was made of."""

    filters: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]
    chain: Chain


class Criteria:
    """Filters in the order in which they run, and weighers.

    ``subset``: the host is drawn at random from this many of the best.
    ``shuffle``: equal scores are ordered at random; otherwise by row. ``shapes``: surveys that are kept.
    """

    def __init__(self, filters: Sequence[Filter], weighers: Sequence[Weigher], *, subset: int, shuffle: bool) -> None:
        self.filters: tuple[Filter, ...] = tuple(filters)
        self.weighers: tuple[Weigher, ...] = tuple(weighers)
        self.cell_wide = any(weigher.cell_wide for weigher in self.weighers)
        self.subset = subset
        self.shuffle = shuffle
        self.shapes = Shapes()
        self._chains: dict[tuple[bool, ...], _Made] = {}

    def chain(self, request: Request) -> Chain:
        """The filters for this request, in order, and the weighers.

        A request's shape says which CONDITIONS hold. Each shape's chain is made once. For forced hosts only the filters with
        ``guards_host`` run.
        """
        shape = request.shape
        made = self._chains.get(shape)
        if made is None or made.filters is not self.filters or made.weighers is not self.weighers:
            given = {name for name, there in zip(CONDITIONS, shape, strict=True) if there}
            called = [one for one in self.filters if _called(one.applies_when, given) and (one.guards_host or not request.forced)]
            chain = Chain.of(called, [one for one in self.weighers if _called(one.applies_when, given)], given)
            self._chains[shape] = made = _Made(self.filters, self.weighers, chain)
        return made.chain


def _called(applies_when: Collection[str], given: set[str]) -> bool:
    return not applies_when or not given.isdisjoint(applies_when)
