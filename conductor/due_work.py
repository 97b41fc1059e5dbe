"""Look whether the API level has work for its sweeps, so that they need not look themselves."""

from __future__ import annotations

import time
from typing import Protocol

from conductor.signals import WorkSignals
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


class DueSweep(Protocol):
    """A sweep that runs when a look has found work for it."""

    name: str

    def run_round(self) -> bool | None:
        """One round; True: there is more to do at once."""
        ...

    def has_work(self, due: SweepsDue) -> bool:
        """Whether there is work for it among what is due."""
        ...


class DueWork:
    """Wakes each sweep that has work, with one statement for all. Tells which cells are busy: their feeds are then read often.

    The statement reads the epochs too, so nothing else needs to while nothing is under way. While it fails, the sweeps run by
    themselves.
    """

    def __init__(
        self,
        api_database: ApiDatabase,
        epochs: EpochReader,
        signals: WorkSignals,
        *,
        sweep_interval: float,
        lease_seconds: float,
        resend_age: float,
    ) -> None:
        """``epochs``: gets those that are read. ``signals``: told of busy cells, and when one of ``FOLLOWED`` has risen.

        Times in seconds, as in ``ConductorSettings``.
        """
        self._database = api_database
        self._epochs = epochs
        self._signals = signals
        self._interval = sweep_interval
        self._lease_seconds = lease_seconds
        self._resend_age = resend_age
        self._seen: dict[Epoch, int] | None = None
        self._sweeps: list[tuple[DueSweep, Periodic]] = []
        self.pace = Pace(sweep_interval, IDLE_FACTOR * sweep_interval)

    @property
    def fallback_interval(self) -> float:
        """Seconds after which a sweep runs that this lookout has neither woken nor passed over."""
        return SELF_DRIVEN_FACTOR * self._interval

    @property
    def epochs_age(self) -> float:
        """How old in seconds the epochs of this lookout may be while nothing is under way."""
        return EPOCHS_FACTOR * self._interval

    def add_sweep(self, sweep: DueSweep, pace: Pace | None = None) -> Periodic:
        """The loop of a sweep that this lookout wakes. ``pace``: None: as often as without a lookout."""
        loop = Periodic(sweep.name, pace or self.fallback_interval, sweep.run_round)
        self._sweeps.append((sweep, loop))
        return loop

    def look_for_work(self) -> None:
        began = time.monotonic()
        due_now = self._database.read(
            due.look_for_work, self._database.current_time(), self._interval / 2, self._lease_seconds, self._resend_age
        )
        self._epochs.note_epochs(due_now.epochs, began)
        seen = {name: due_now.epochs.get(name, 0) for name in FOLLOWED}
        if self._seen != seen:
            self._seen = seen
            self._signals.follow_changes()
        for sweep, loop in self._sweeps:
            if sweep.has_work(due_now):
                loop.wake_now()
            else:
                loop.pass_over()
        if due_now.is_open:
            self.pace.hurry_for()
        if due_now.building or due_now.unconfirmed or due_now.operations:
            self._signals.hurry_cells(self._database.read(due.busy_cells))
