"""The chance driver: draws any host that is up at random. A baseline for measuring the filter driver."""

from __future__ import annotations

from collections.abc import Sequence

from objects.decision import FilterCount
from scheduler.engine.always import at_last, constant_filters
from scheduler.engine.driver import ANY_HOST, SchedulerDriver
from scheduler.filters.capacity import CoreFilter, DiskFilter, RamFilter
from scheduler.filters.compute import ComputeFilter
from scheduler.framework.filter import Filter
from scheduler.framework.settings import SchedulerSettings
from scheduler.framework.weigher import Weigher


class ChanceScheduler(SchedulerDriver):
    """Chooses among hosts that are up and that the request allows. The configured filters and weighers do not run.

    Unlike Nova's former driver of this name, it never chooses a full host, because a claim must fit.
    """

    name = "chance"

    def __init__(self, settings: SchedulerSettings, filters: Sequence[Filter], weighers: Sequence[Weigher]) -> None:
        super().__init__(settings, (), ())
        up = ComputeFilter(settings)
        amounts = RamFilter(settings), CoreFilter(settings), DiskFilter(settings)
        self.filters = (up, *constant_filters(settings), *amounts, *at_last(settings))
        self.subset = ANY_HOST

    def refusal_message(self, counts: Sequence[FilterCount], hosts: int, placed_count: int, needed_count: int) -> str:
        nobody_up = not any(count.name == ComputeFilter.__name__ and count.after for count in counts)
        reason = "Is the appropriate service running?" if nobody_up else "Could not find another compute."
        return f"No valid host was found. {reason}"
