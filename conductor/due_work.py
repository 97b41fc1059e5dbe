"""Look whether the API level has work for its sweeps, so that they need not look themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from db.api.queue import due
from db.api.queue.due import SweepsDue
from db.api.rows.cache import EpochReader
from db.api.rows.epochs import Epoch
from db.sql.engine import ApiDatabase
from service.pace import Pace
from service.periodic import Periodic

IDLE_FACTOR = 2.5
"""Pauses while nothing is under way, in ``sweep_interval``."""
SELF_DRIVEN_FACTOR = 8
"""A sweep that is not told whether it has work runs by itself after so many ``sweep_interval``."""
EPOCHS_FACTOR = 3
"""The epochs that a lookout has read are at most so many ``sweep_interval`` old: its longest pause, and some time to read them."""


FOLLOWED = (Epoch.CELLS, Epoch.HOSTS, Epoch.FEEDS)
"""The epochs of what followers of feeds depend on."""


class Lookout:
    """Wakes each sweep that has work, with one statement for all. Tells which cells are busy: their feeds are then read often.

    The statement reads the epochs too, so nothing else needs to while nothing is under way. While it fails, the sweeps run by
    themselves.
    """

    def __init__(
        self,
        api_database: ApiDatabase,
        *,
        sweep_interval: float,
        lease_seconds: float,
        resend_age: float,
        busy: Callable[[Collection[str]], None],
        epochs: EpochReader,
    ) -> None:
        """``busy``: called with the UUIDs of cells that were asked for something, as long as their feeds have not told its end.

        ``epochs``: gets those that are read.
        """
        self._database = api_database
        self._interval = sweep_interval
        self._queue_age = sweep_interval / 2
        self._lease_seconds = lease_seconds
        self._resend_age = resend_age
        self._busy = busy
        self._epochs = epochs
        self._seen: dict[Epoch, int] | None = None
        self.pace = Pace(sweep_interval, IDLE_FACTOR * sweep_interval)

    @property
    def fallback_interval(self) -> float:
        """Seconds after which a sweep runs that this lookout has neither woken nor passed over."""
        return SELF_DRIVEN_FACTOR * self._interval

    @property
    def epochs_age(self) -> float:
        """How old in seconds the epochs of this lookout may be while nothing is under way."""
        return EPOCHS_FACTOR * self._interval

    def sweep(self, name: str, function: Callable[[], bool | None]) -> Periodic:
        """A sweep that this lookout wakes."""
        return Periodic(name, self.fallback_interval, function)

    def look(self, sweeps: Mapping[Periodic, Callable[[SweepsDue], bool]], changed: Callable[[], None] = lambda: None) -> None:
        """``sweeps``: whether each of them has work. ``changed``: called when one of ``FOLLOWED`` has risen since the last look."""
        age, seconds = self._queue_age, self._lease_seconds
        began = time.monotonic()
        found = self._database.read(due.look, self._database.now(), age, seconds, self._resend_age)
        self._epochs.note(found.epochs, began)
        seen = {name: found.epochs.get(name, 0) for name in FOLLOWED}
        if self._seen != seen:
            self._seen = seen
            changed()
        for sweep, has_work in sweeps.items():
            if has_work(found):
                sweep.wake()
            else:
                sweep.pass_over()
        if found.is_open:
            self.pace.hurry()
        if found.building or found.unconfirmed or found.operations:
            self._busy(self._database.read(due.busy_cells))
