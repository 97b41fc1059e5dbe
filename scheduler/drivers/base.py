"""What a driver is."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from objects.decision import FilterCount
from scheduler.filters.always import always
from scheduler.filters.base import Filter
from scheduler.plan import engine
from scheduler.plan.criteria import Criteria
from scheduler.plan.request import Request
from scheduler.plan.survey import Survey
from scheduler.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from scheduler.weighers.base import Weigher

ANY = 1 << 30
"""A subset size that means: any host left."""


class SchedulerDriver(Criteria, abc.ABC):
    """A way to choose. A site's own overrides what it does otherwise: its filters, its weighers, or ``choose``."""

    name: ClassVar[str]

    def __init__(self, settings: SchedulerSettings, filters: Sequence[Filter], weighers: Sequence[Weigher]) -> None:
        """``filters`` and ``weighers`` are those the configuration enables; a driver need not use them."""
        super().__init__(
            (*always(settings), *filters),
            weighers,
            subset=settings.host_subset_size,
            shuffle=settings.shuffle_best_same_weighed_hosts,
        )

    def choose(self, table: HostTable, request: Request, found: Survey, count: int) -> list[int]:
        """Rows of ``table`` for ``count`` instances, in order; fewer where no host fits any more. A row may come several times.

        ``found`` has the rows that pass the filters, with their scores. The table tells of all that is claimed, and of what other
        instances of the same moment take. ``engine.take`` puts an instance on a row while the next is thought about; it is taken
        back at the end. Each row that is returned is then asked about by the filters, with those before it taken. Called under the
        table's lock, so it is to be quick, and to change nothing else.
        """
        return engine.choose(table, self, request, found, count)

    def place(self, table: HostTable, request: Request, found: Survey, count: int) -> list[int]:
        """``choose``, with what it chose taken. Raises ValueError where a site's own chose what the filters do not let pass."""
        if type(self).choose is SchedulerDriver.choose:
            return engine.choose(table, self, request, found, count)
        step = engine.PlanningStep(table, request)
        rows = [int(row) for row in self.choose(table, request, found, count)]
        step.undo()
        if len(rows) > count or not all(0 <= row < table.size for row in rows):
            raise ValueError(f"driver {self.name} chose rows {rows} for {count} instances, of a table of {table.size}")
        for row in rows:
            if not engine.fits(self, table, request, np.array([row]))[0]:
                raise ValueError(f"driver {self.name} chose host {table.hosts[row]}, which its filters do not let pass")
            engine.take(table, request, row)
        return rows

    @abc.abstractmethod
    def refusal(self, counts: Sequence[FilterCount], hosts: int, found: int, wanted: int) -> str:
        """One sentence for the tenant on why only ``found`` of ``wanted`` instances found one of ``hosts`` hosts. Names no host.

        ``counts`` are those of the first instance that found none.
        """
