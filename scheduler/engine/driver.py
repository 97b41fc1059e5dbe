"""The base class of scheduler drivers."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from objects import hints
from objects.decision import FilterCount
from objects.spec import RequestSpec
from scheduler.engine import engine
from scheduler.engine.always import at_last, constant_filters
from scheduler.engine.criteria import Criteria
from scheduler.engine.decision_inputs import kept_settings
from scheduler.engine.survey import Survey
from scheduler.framework.batch_request import Request
from scheduler.framework.filter import Filter
from scheduler.framework.settings import SchedulerSettings
from scheduler.framework.weigher import Weigher
from scheduler.table.host_table import HostTable

ANY_HOST = 1 << 30
"""A subset size that includes every host."""


class SchedulerDriver(Criteria, abc.ABC):
    """A way to choose hosts. A site's own driver overrides its filters, its weighers, or ``choose_rows``."""

    name: ClassVar[str]

    kept_settings: dict[str, Any] | None
    """The settings that are not the defaults, for the records of decisions; None if they are too long."""

    def __init__(self, settings: SchedulerSettings, filters: Sequence[Filter], weighers: Sequence[Weigher]) -> None:
        """``filters`` and ``weighers``: those that the configuration enables. A driver need not use them."""
        self.kept_settings = kept_settings(settings)
        super().__init__(
            (*constant_filters(settings), *filters, *at_last(settings)),
            weighers,
            subset=settings.host_subset_size,
            shuffle=settings.shuffle_best_same_weighed_hosts,
        )

    def choose_rows(self, table: HostTable, request: Request, surveyed: Survey, count: int) -> list[int]:
        """Choose rows of ``table`` for ``count`` instances, in order; fewer if no host fits any more. A row may occur repeatedly.

        ``surveyed`` has the rows that pass the filters, with their scores. The table shows everything that is claimed, and what
        other batches of the same transaction take. ``engine.take_row`` takes room for an instance before the next is chosen; the
        caller undoes it. The caller then runs the filters on each returned row, with the rows before it taken. It holds the table's
        lock, so this method must be fast and change nothing else.
        """
        return engine.choose_rows(table, self, request, surveyed, count)

    def place_instances(self, table: HostTable, request: Request, surveyed: Survey, count: int) -> list[int]:
        """Call ``choose_rows`` and take what it chose. Raises ValueError if a site's own driver chose a row that the filters
        refuse.
        """
        if type(self).choose_rows is SchedulerDriver.choose_rows:
            return engine.choose_rows(table, self, request, surveyed, count)
        step = engine.Savepoint(table, request)
        rows = [int(row) for row in self.choose_rows(table, request, surveyed, count)]
        step.undo()
        if len(rows) > count or not all(0 <= row < table.size for row in rows):
            raise ValueError(f"driver {self.name} chose rows {rows} for {count} instances, of a table of {table.size}")
        for row in rows:
            if not engine.fitting_rows(self, table, request, np.array([row]))[0]:
                raise ValueError(f"driver {self.name} chose host {table.hosts[row]}, which its filters do not let pass")
            engine.take_row(table, request, row)
        return rows

    def choose_one(self, table: HostTable, request: Request, surveyed: Survey) -> int | None:
        """The row that ``place_instances`` would choose for one instance; None if it chooses none. Nothing stays taken."""
        if self.subset == 1 and type(self).choose_rows is SchedulerDriver.choose_rows:
            return surveyed.first_row()
        with table.take_tentatively():
            rows = self.place_instances(table, request, surveyed, 1)
        return rows[0] if rows else None

    def unread_hints(self, spec: RequestSpec) -> tuple[str, ...]:
        """Scheduler hints of the request that neither a filter nor the API reads; none while an enabled plug-in may read any."""
        plugins: tuple[Filter | Weigher, ...] = (*self.filters, *self.weighers)
        with_hints = [plugin for plugin in plugins if "scheduler_hints" in plugin.applies_when]
        if not all(plugin.hint_names for plugin in with_hints):
            return ()
        known = {name for plugin in with_hints for name in plugin.hint_names} | hints.READ_BY_API
        return tuple(sorted(spec.scheduler_hints.keys() - known))

    @abc.abstractmethod
    def refusal_message(self, counts: Sequence[FilterCount], hosts: int, placed_count: int, needed_count: int) -> str:
        """Tell the tenant in one sentence why only ``placed_count`` of ``needed_count`` instances found one of ``hosts`` hosts.
        Names no host.

        ``counts``: the filter counts for the first instance that found none.
        """
