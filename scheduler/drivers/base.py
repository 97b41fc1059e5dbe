"""What a driver is."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

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
from scheduler.settings import Settings
from scheduler.weighers.base import Weigher

ANY = 1 << 30
"""A subset size that means: any host left."""


class Driver(abc.ABC):
    """A way to choose. The engine does the choosing, with what the driver is made of.

    ``filters`` in the order asked; ``weighers``; ``subset``: the winner is drawn from so many of the best; ``shuffle``: equal
    scores are ordered by chance, otherwise by the host's place in the table.
    """

    name: ClassVar[str]

    def __init__(self, settings: Settings, filters: Sequence[Filter], weighers: Sequence[Weigher]) -> None:
        """``filters`` and ``weighers`` are those the configuration enables; a driver need not use them."""
        self.filters: tuple[Filter, ...] = (*always(settings), *filters)
        self.weighers: tuple[Weigher, ...] = tuple(weighers)
        self.cell_wide = any(weigher.cell_wide for weigher in self.weighers)
        self.subset = settings.host_subset_size
        self.shuffle = settings.shuffle_best_same_weighed_hosts

    @abc.abstractmethod
    def refusal(self, counts: Sequence[FilterCount], hosts: int, found: int, wanted: int) -> str:
        """One sentence for the tenant on why only ``found`` of ``wanted`` instances found one of ``hosts`` hosts. Names no host.

        ``counts`` are those of the first instance that found none.
        """


def always(settings: Settings) -> tuple[Filter, ...]:
    """What the request itself demands, however the site is configured."""
    places = (ForceHosts, RequestedDestination, RequestedCell, SourceHost, IgnoreHosts, ExcludedCells, ExcludedHosts)
    return (*(place(settings) for place in places), ResourceClassFilter(settings))
