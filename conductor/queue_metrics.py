"""Metrics of waiting requests and open operations at the API level, and of a cell's instances.

They are sampled only when read, and cached for a while.
"""

from __future__ import annotations

from collections.abc import Sequence

from db.api.rows import metering as api_metering
from db.cell import metering as cell_metering
from db.sql.engine import ApiDatabase, CellDatabase
from objects.operation import OperationState
from objects.waiting import WaitingCount
from service import metrics
from service.cached_probe import Sample

PROJECTS_LIMIT = 20
"""Number of projects shown by name, those with the most queued requests. The limit bounds the number of time series."""
OTHER_PROJECTS = "other"


class QueueMetrics:
    """Depth and age of the request queue, by project."""

    def __init__(self, api_database: ApiDatabase) -> None:
        self._database = api_database
        self._sample: Sample[Sequence[WaitingCount]] = Sample(
            "the queue", lambda: api_database.read(api_metering.count_queued, PROJECTS_LIMIT)
        )
        metrics.QUEUE_DEPTH.follow_reader(self._count_waiting)
        metrics.QUEUE_AGE.follow_reader(self._oldest_age)

    def _count_waiting(self) -> metrics.Values:
        return [((waiting.name or OTHER_PROJECTS,), waiting.count) for waiting in self._sample.get() or ()]

    def _oldest_age(self) -> metrics.Values:
        return [
            ((waiting.name or OTHER_PROJECTS,), _age_of(waiting, self._database.current_time()))
            for waiting in self._sample.get() or ()
        ]


class OperationMetrics:
    """Number and age of open operations, by state. A state without one is 0, so that a graph comes down."""

    def __init__(self, api_database: ApiDatabase) -> None:
        self._database = api_database
        self._sample: Sample[Sequence[WaitingCount]] = Sample("operations", lambda: api_database.read(api_metering.open_operations))
        metrics.OPERATIONS.follow_reader(self._count_waiting)
        metrics.OPERATION_AGE.follow_reader(self._oldest_age)

    def _count_waiting(self) -> metrics.Values:
        counted = self._sample.get()
        if counted is None:
            return []
        counts = {waiting.name: waiting.count for waiting in counted}
        return [((state,), counts.get(state, 0)) for state in OperationState if state is not OperationState.ENDED]

    def _oldest_age(self) -> metrics.Values:
        return [((waiting.name,), _age_of(waiting, self._database.current_time())) for waiting in self._sample.get() or ()]


class CellQueue:
    """Number and age of a cell's instances in transitional states."""

    def __init__(self, name: str, cell_database: CellDatabase) -> None:
        self._name = name
        self._database = cell_database
        self._sample: Sample[Sequence[WaitingCount]] = Sample(
            f"cell {name}", lambda: cell_database.read(cell_metering.count_passing)
        )
        metrics.CELL_DEPTH.follow_reader(self._count_waiting)
        metrics.CELL_AGE.follow_reader(self._oldest_age)

    def _count_waiting(self) -> metrics.Values:
        counted = self._sample.get()
        if counted is None:
            return []
        counts = {waiting.name: waiting.count for waiting in counted}
        return [((self._name, state), counts.get(state, 0)) for state in cell_metering.PASSING]

    def _oldest_age(self) -> metrics.Values:
        return [
            ((self._name, waiting.name), _age_of(waiting, self._database.current_time())) for waiting in self._sample.get() or ()
        ]


def _age_of(waiting: WaitingCount, now: float) -> float:
    return max(0.0, now - waiting.oldest)
