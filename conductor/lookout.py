"""Look whether the API level has work for its sweeps, so that they need not look themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from db.api import due
from db.api.due import SweepsDue
from db.sql.engine import ApiDatabase
from service.pace import Pace
from service.periodic import Periodic

IDLE_FACTOR = 2.5
"""Pauses while nothing is under way, in ``sweep_interval``."""
SELF_DRIVEN_FACTOR = 8
"""A sweep that is not told whether it has work runs by itself after so many ``sweep_interval``."""


class Lookout:
    """Wakes each sweep that has work, with one statement for all. Tells which cells are busy: their feeds are then read often.

    While it fails, the sweeps run by themselves.
    """

    def __init__(
        self,
        api_database: ApiDatabase,
        *,
        sweep_interval: float,
        lease_seconds: float,
        resend_age: float,
        busy: Callable[[Collection[str]], None],
    ) -> None:
        """``busy``: called with the UUIDs of cells that were asked for something, as long as their feeds have not told its end."""
        self._database = api_database
        self._interval = sweep_interval
        self._queue_age = sweep_interval / 2
        self._lease_seconds = lease_seconds
        self._resend_age = resend_age
        self._busy = busy
        self.pace = Pace(sweep_interval, IDLE_FACTOR * sweep_interval)

    @property
    def fallback_interval(self) -> float:
        """Seconds after which a sweep runs that this lookout has neither woken nor passed over."""
        return SELF_DRIVEN_FACTOR * self._interval

    def sweep(self, name: str, function: Callable[[], bool | None]) -> Periodic:
        """A sweep that this lookout wakes."""
        return Periodic(name, self.fallback_interval, function)

    def look(self, sweeps: Mapping[Periodic, Callable[[SweepsDue], bool]]) -> None:
        """``sweeps``: whether each of them has work."""
        age, seconds = self._queue_age, self._lease_seconds
        found = self._database.read(due.look, self._database.now(), age, seconds, self._resend_age)
        for sweep, has_work in sweeps.items():
            if has_work(found):
                sweep.wake()
            else:
                sweep.pass_over()
        if found.is_open:
            self.pace.hurry()
        if found.building or found.unconfirmed or found.operations:
            self._busy(self._database.read(due.busy_cells))
