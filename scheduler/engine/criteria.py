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

    def chain_for(self, request: Request) -> Chain:
        """The filters for this request, in order, and the weighers.

        A request's shape says which CONDITIONS hold. Each shape's chain is made once. For forced hosts only the filters with
        ``guards_host`` run.
        """
        shape = request.optional_fields
        cached = self._chains.get(shape)
        if cached is None or cached.filters is not self.filters or cached.weighers is not self.weighers:
            present_fields = {name for name, is_present in zip(CONDITIONS, shape, strict=True) if is_present}
            called = [
                one
                for one in self.filters
                if _is_called(one.applies_when, present_fields) and (one.guards_host or not request.is_forced)
            ]
            chain = Chain.build_chain(
                called, [one for one in self.weighers if _is_called(one.applies_when, present_fields)], present_fields
            )
            self._chains[shape] = cached = _Made(self.filters, self.weighers, chain)
        return cached.chain


def _is_called(applies_when: Collection[str], present_fields: set[str]) -> bool:
    return not applies_when or not present_fields.isdisjoint(applies_when)
