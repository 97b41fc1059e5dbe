"""The API level's sweeps over the cells: one thread for each cell, so that a sick cell holds up nobody else."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cells.cell import Cell
from cells.registry import CellRegistry
from conductor.apply import Applier
from conductor.newcomers import Newcomers
from conductor.set_aside import SetAside
from conductor.settle import settle
from db.api.claims import Ledger
from db.api.epochs import Epoch
from db.sql.engine import ApiDatabase
from objects import errors
from objects.cell import CELL0_UUID
from service.periodic import Every, Periodic, Steps

LOG = logging.getLogger(__name__)

EPOCH_AGE_S = 1.0
"""Seconds after which a position that somebody set is followed. The registry looks as often, so this costs no statement."""


class FeedFollower:
    """Follows one cell's feed and settles its STAGED rows.

    Several conductors keep a cell, and one of them is enough for its feed. Who is overtaken leaves it to the other, looks now and
    then whether anything is left undone, and is again the one to follow where there is.
    """

    def __init__(
        self,
        api_database: ApiDatabase,
        ledger: Ledger,
        registry: CellRegistry,
        cell: Cell,
        settle_age: float,
        *,
        map_hosts: bool = False,
        identified_only: bool = False,
        rests: int = 0,
        aside: SetAside | None = None,
    ) -> None:
        """``map_hosts``: map the hosts that report in the cell, rather than leave that to 'host discover'. ``identified_only``: of
        these only the ones that the broker shows to be what they say.

        ``rests``: rounds for which the feed is left to another that was quicker, or that has left nothing to do.
        """
        self._database = api_database
        self._registry = registry
        self._cell = cell
        newcomers = Newcomers(api_database, registry, cell, identified_only=identified_only) if map_hosts else None
        self._aside = aside or SetAside(api_database, "api")
        self._applier = Applier(api_database, ledger, cell, newcomers, self._aside)
        self._epoch: int | None = None
        self._second = False
        self._rests = rests
        self._left = 0
        self._settle_age = settle_age
        self._settle_now = Every(settle_age)

    def keep(self) -> bool:
        """One round; returns whether there is more to do at once. What fails in it keeps nothing that follows from being done."""
        with Steps() as steps:
            more = steps.run(self._round) or False
            if self._settle_now():
                steps.run(settle, self._database, self._cell, self._settle_age, self._aside)
        return more

    def _round(self) -> bool:
        if self._cell.mapping.is_cell0 or self._resting():
            return False
        with Steps() as steps:
            more = steps.run(self._follow) or False
            steps.run(self._retry)
        return more

    def _retry(self) -> None:
        try:
            self._applier.retry()
        except errors.Conflict as behind:
            LOG.debug("%s", behind)

    def _resting(self) -> bool:
        self._left -= 1
        return self._left >= 0

    def _is_set_elsewhere(self) -> bool:
        """Whether the position may have been set otherwise than by applying. In an idle cell nothing else would show it."""
        every, _ = self._registry.epochs.read(time.monotonic() - EPOCH_AGE_S)
        before, self._epoch = self._epoch, every.get(Epoch.FEEDS, 0)
        return before != self._epoch

    def _follow(self) -> bool:
        try:
            if self._is_set_elsewhere() or self._second:
                self._applier.forget()
            pages = self._applier.pages
            self._applier.map_hosts(self._registry.hosts_of(self._cell.uuid))
            more = self._applier.apply()
            self._second = self._second and self._applier.pages == pages
        except errors.Conflict as behind:
            LOG.debug("%s", behind)
            more, self._second = False, True
        self._left = self._rests if self._second else 0
        return more


class FeedFollowers:
    """One running keeper per cell of the registry, cell0 included; cells that come and go are followed."""

    def __init__(self, registry: CellRegistry, keeper: Callable[[Cell], FeedFollower], interval: float) -> None:
        self._registry = registry
        self._keeper = keeper
        self._interval = interval
        self._running: dict[str, tuple[Cell, Periodic]] = {}

    def follow(self) -> None:
        """Start keepers of new or changed cells, stop those of cells that are gone."""
        wanted = {cell.uuid: cell for cell in self._registry.cells()}
        try:
            wanted[CELL0_UUID] = self._registry.cell0
        except errors.NotFound as missing:  # the other cells are kept all the same
            LOG.warning("%s", missing)
        for uuid, (cell, periodic) in list(self._running.items()):
            if wanted.get(uuid) is not cell:
                periodic.stop()
                del self._running[uuid]
        for uuid, cell in wanted.items():
            if uuid not in self._running:
                periodic = Periodic(f"keep-{cell.name}", self._interval, self._keeper(cell).keep)
                self._running[uuid] = (cell, periodic.start())

    def stop(self) -> None:
        for _, periodic in self._running.values():
            periodic.stop()
        self._running.clear()
