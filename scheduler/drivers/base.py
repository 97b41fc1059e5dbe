"""What a driver is."""

from __future__ import annotations

import abc
from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple

from objects.decision import FilterCount
from scheduler.filters.base import Filter
from scheduler.filters.excluded_cells import ExcludedCells
from scheduler.filters.excluded_hosts import ExcludedHosts
from scheduler.filters.force_hosts import ForceHosts
from scheduler.filters.ignore_hosts import IgnoreHosts
from scheduler.filters.requested_cell import RequestedCell
from scheduler.filters.requested_destination import RequestedDestination
from scheduler.filters.resource_classes import ResourceClassFilter
from scheduler.filters.source_host import SourceHost
from scheduler.plan.request import OPTIONAL, Request
from scheduler.settings import SchedulerSettings
from scheduler.weighers.base import Weigher

ANY = 1 << 30
"""A subset size that means: any host left."""


class Chain(NamedTuple):
    """Those of the filters and weighers that requests of one shape may call for."""

    filters: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]


class SchedulerDriver(abc.ABC):
    """A way to choose. The engine does the choosing, with what the driver is made of.

    ``filters`` in the order asked; ``weighers``; ``subset``: the winner is drawn from so many of the best; ``shuffle``: equal
    scores are ordered by chance, otherwise by the host's place in the table.
    """

    name: ClassVar[str]

    def __init__(self, settings: SchedulerSettings, filters: Sequence[Filter], weighers: Sequence[Weigher]) -> None:
        """``filters`` and ``weighers`` are those the configuration enables; a driver need not use them."""
        self.filters: tuple[Filter, ...] = (*always(settings), *filters)
        self.weighers: tuple[Weigher, ...] = tuple(weighers)
        self.cell_wide = any(weigher.cell_wide for weigher in self.weighers)
        self.subset = settings.host_subset_size
        self.shuffle = settings.shuffle_best_same_weighed_hosts
        self._chains: dict[tuple[bool, ...], tuple[Chain, Chain]] = {}

    def chain(self, request: Request) -> Chain:
        """The filters to be asked about this request, in order, and the weighers.

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

    @abc.abstractmethod
    def refusal(self, counts: Sequence[FilterCount], hosts: int, found: int, wanted: int) -> str:
        """One sentence for the tenant on why only ``found`` of ``wanted`` instances found one of ``hosts`` hosts. Names no host.

        ``counts`` are those of the first instance that found none.
        """


def _called(applies_when: Collection[str], given: set[str]) -> bool:
    return not applies_when or not given.isdisjoint(applies_when)


def always(settings: SchedulerSettings) -> tuple[Filter, ...]:
    """What the request itself demands, however the site is configured."""
    places = (ForceHosts, RequestedDestination, RequestedCell, SourceHost, IgnoreHosts, ExcludedCells, ExcludedHosts)
    return (*(place(settings) for place in places), ResourceClassFilter(settings))
