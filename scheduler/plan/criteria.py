"""The filters, weighers and settings that a driver gives to the engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from scheduler.filters.base import Filter
from scheduler.plan.request import OPTIONAL, Request
from scheduler.weighers.base import Weigher


class Chain(NamedTuple):
    """The filters and weighers that apply to requests of one shape.

    ``at_once``: filters of all hosts at once. ``singly``: those of one host at a time, which run after them.
    """

    at_once: tuple[Filter, ...]
    singly: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]

    @property
    def filters(self) -> tuple[Filter, ...]:
        return self.at_once + self.singly


class _Made(NamedTuple):
    """A chain, and the filters and weighers of the driver that it was made of."""

    filters: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]
    chain: Chain


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
        self._chains: dict[tuple[bool, ...], _Made] = {}

    def chain(self, request: Request) -> Chain:
        """The filters for this request, in order, and the weighers.

        A request's shape says which optional fields it has. Each shape's chain is made once. For forced hosts only the filters with
        ``guards_host`` run.
        """
        shape = request.shape
        made = self._chains.get(shape)
        if made is None or made.filters is not self.filters or made.weighers is not self.weighers:
            given = {name for name, there in zip(OPTIONAL, shape, strict=True) if there}
            called = [one for one in self.filters if _called(one.applies_when, given) and (one.guards_host or not request.forced)]
            chain = Chain(
                tuple(one for one in called if not one.host_by_host),
                tuple(one for one in called if one.host_by_host),
                tuple(one for one in self.weighers if _called(one.applies_when, given)),
            )
            self._chains[shape] = made = _Made(self.filters, self.weighers, chain)
        return made.chain


def _called(applies_when: Collection[str], given: set[str]) -> bool:
    return not applies_when or not given.isdisjoint(applies_when)
