"""The API level's sweeps over the cells: one thread per cell, so that a failing cell does not delay the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from cells.cell import Cell
from conductor.apply import Applier
from conductor.context import ConductorContext
from conductor.host_mapper import HostMapper
from conductor.settle import settle_staged
from db.api.queue.due import SweepsDue
from db.api.rows.epochs import Epoch
from objects import errors
from objects.base import Object
from objects.cell import CELL0_UUID
from service.pace import Pace
from service.periodic import ErrorCollector, Every, Periodic

LOG = logging.getLogger(__name__)

SETTLE_IDLE_FACTOR = 12
"""In a cell that is asked for nothing, STAGED rows are looked for so many times less often."""
EPOCH_AGE_S = 1.0
"""Seconds within which a feed position set from outside is noticed. The registry reads epochs as often: no extra statement.
In an idle cell the lookout reads them, and tells when one has changed."""


class FeedSettings(Object, frozen=True, kw_only=True):
    """How a super conductor follows feeds. Times in seconds.

    ``settle_age``: age from which STAGED rows are settled.
    ``map_hosts``: map the hosts that report in a cell; otherwise 'host discover' does it.
    ``identified_only``: map only hosts whose identity the broker confirms.
    ``pause_rounds``: rounds to pause after another follower was quicker or has left nothing to do.
    ``other_cell_timeout``: see ``db.api.reconcile.events.apply_page``.
    ``idle_epochs_age``: age up to which epochs count that were read for others, while the cell is idle.
    ``interval``, ``idle_interval``: see ``Pace``.
    """

    settle_age: float
    map_hosts: bool = False
    identified_only: bool = False
    pause_rounds: int = 0
    other_cell_timeout: float = 0.0
    idle_epochs_age: float = EPOCH_AGE_S
    interval: float = 0.0
    idle_interval: float | None = None


class FeedFollower:
    """Follows one cell's feed and settles its STAGED rows.

    Several conductors follow each cell, and one of them is enough for its feed. A follower that is overtaken pauses for
    ``pause_rounds``, then looks for events that were not applied. If there are any, it follows the feed again.

    ``pace``: of the loop that calls ``keep_up``. Events hurry it.
    """

    def __init__(self, context: ConductorContext, cell: Cell, settings: FeedSettings) -> None:
        self.pace = Pace(settings.interval, settings.idle_interval)
        self._settings = settings
        self._database = context.database
        self._registry = context.registry
        self._cell = cell
        self._aside = context.aside
        self._applier = Applier(
            context.ledger,
            cell,
            HostMapper(context.database, context.registry, cell, identified_only=settings.identified_only)
            if settings.map_hosts
            else None,
            self._aside,
            signals=context.signals,
            other_cell_timeout=settings.other_cell_timeout,
        )
        self._epoch: int | None = None
        self._second = False
        self._rounds_left = 0
        self._settle_now = Every(settings.settle_age)
        self._settle_in_idle_cell = Every(SETTLE_IDLE_FACTOR * settings.settle_age)

    def keep_up(self) -> bool:
        """One round; returns whether there is more to do at once. The steps after a failed one run nonetheless."""
        with ErrorCollector() as steps:
            more = steps.run(self._follow_round) or False
            if self._settle_in_idle_cell() or (not self.pace.is_idle and self._settle_now()):
                steps.run(settle_staged, self._database, self._cell, self._settings.settle_age, self._aside)
        return more

    def _follow_round(self) -> bool:
        if self._cell.current_mapping.is_cell0 or self._is_pausing():
            return False
        with ErrorCollector() as steps:
            more = steps.run(self._follow_feed) or False
            steps.run(self._retry_letters)
        return more

    def _retry_letters(self) -> None:
        try:
            self._applier.retry_due()
        except errors.Conflict as behind:
            LOG.debug("%s", behind)

    def _is_pausing(self) -> bool:
        self._rounds_left -= 1
        return self._rounds_left >= 0

    def _is_set_elsewhere(self, age: float) -> bool:
        """Whether something other than an applier may have set the feed position. In an idle cell nothing else shows this."""
        every, _ = self._registry.epochs.read(time.monotonic() - age)
        before, self._epoch = self._epoch, every.get(Epoch.FEEDS, 0)
        return before != self._epoch

    def _follow_feed(self) -> bool:
        try:
            is_idle = self.pace.is_idle
            age = self._settings.idle_epochs_age if is_idle else EPOCH_AGE_S
            if self._is_set_elsewhere(age) or (self._second and not is_idle):
                self._applier.forget_cursor()
            pages = self._applier.pages
            self._applier.map_hosts(self._registry.hosts_of(self._cell.uuid, age))
            more = self._applier.apply_page(is_followed_elsewhere=self._second)
            if self._applier.pages != pages:
                self.pace.hurry_for()
            self._second = self._second and self._applier.pages == pages
        except errors.Conflict as behind:
            LOG.debug("%s", behind)
            more, self._second = False, True
        self._rounds_left = self._settings.pause_rounds if self._second and not self.pace.is_idle else 0
        return more


class FeedFollowers:
    """Runs one ``FeedFollower`` per cell of the registry, cell0 included, also for cells added later.

    Each has a pace of its own: a cell is read often while it was asked for something or its feed has news.
    """

    name = "cells"

    def __init__(self, context: ConductorContext, settings: FeedSettings) -> None:
        self._context = context
        self._settings = settings
        self._running: dict[str, tuple[Cell, Periodic]] = {}

    def has_work(self, due: SweepsDue) -> bool:
        """Never: what is due does not tell of new cells. ``WorkSignals.follow_changes`` does."""
        del due
        return False

    def run_round(self) -> None:
        """Start the followers of new or changed cells, and stop those of removed cells."""
        registry = self._context.registry
        wanted = {cell.uuid: cell for cell in registry.list_cells()}
        try:
            wanted[CELL0_UUID] = registry.cell0
        except errors.NotFound as missing:  # the other cells are followed nonetheless
            LOG.warning("%s", missing)
        for uuid, (cell, periodic) in list(self._running.items()):
            if wanted.get(uuid) is not cell:
                cell.asked = _has_no_reader
                periodic.stop()
                del self._running[uuid]
        for uuid, cell in wanted.items():
            if uuid not in self._running:
                follower = FeedFollower(self._context, cell, self._settings)
                cell.asked = follower.pace.hurry_for
                self._running[uuid] = (cell, Periodic(f"keep-{cell.name}", follower.pace, follower.keep_up).start())

    def hurry_all(self) -> None:
        """Read the feeds of all cells soon, once."""
        for _, periodic in list(self._running.values()):
            periodic.pace.hurry_for()

    def hurry_cells(self, cell_uuids: Collection[str], lasting: float) -> bool:
        """Read the feeds of these cells often for ``lasting`` seconds. Return whether all of them are followed."""
        running = self._running.copy()
        for uuid in running.keys() & set(cell_uuids):
            running[uuid][1].pace.hurry_for(lasting)
        return running.keys() >= set(cell_uuids)

    def stop(self) -> None:
        for cell, periodic in self._running.values():
            cell.asked = _has_no_reader
            periodic.stop()
        self._running.clear()


def _has_no_reader() -> None:
    """Nobody reads the cell's feed."""
