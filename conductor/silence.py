"""Record in the API database which cells do not answer. Server lists read it there: they ask no cell and show summaries."""

from __future__ import annotations

import logging
import time

from cells.cell import Cell
from cells.registry import CellRegistry
from db.api.deployment import silences
from db.api.deployment.silences import Silence
from db.api.queue.due import SweepsDue
from db.api.reconcile import events
from db.cell import feed
from db.sql.engine import ApiDatabase
from objects import errors

LOG = logging.getLogger(__name__)


class SilenceWatch:
    """Watches which cells answer. While nothing changes, a look costs one statement, regardless of the number of cells."""

    name = "silences"

    def __init__(self, api_database: ApiDatabase, registry: CellRegistry) -> None:
        self._database = api_database
        self._registry = registry
        self._heads: dict[str, int] = {}
        """By UUID of cells that answer again: the end of their feed at the first answer."""

    def has_work(self, due: SweepsDue) -> bool:
        return due.silences or self._registry.has_silent()

    def run_round(self) -> None:
        """Record cells that stopped answering. Remove the record of cells that answer again and whose feed was caught up with."""
        known = {each.cell_uuid for each in self._database.read(silences.read)}
        cells = {cell.uuid: cell for cell in self._registry.list_cells()}
        broken = self._registry.reasons_by_uuid()
        silent = [
            Silence(cell_uuid=cell.uuid, since=since, reason=f"cell {cell.name!r}: its database does not answer")
            for cell in cells.values()
            if (since := cell.database_silent_since) is not None
        ]
        now = time.time()
        silent += [Silence(cell_uuid=uuid, since=now, reason=reason) for uuid, reason in broken.items()]
        fresh = [each for each in silent if each.cell_uuid not in known]
        if fresh:
            self._database.write(silences.begin_silences, fresh)
            for each in fresh:
                LOG.warning("%s: lists show the last known state of its servers", each.reason)
        silent_uuids = {each.cell_uuid for each in silent}
        over = {uuid for uuid in known - silent_uuids if uuid not in cells or self._is_followed(cells[uuid])}
        if over:
            self._database.write(silences.end_silences, over)
            LOG.info("cells %s are no longer silent", ", ".join(sorted(cells[u].name if u in cells else u for u in over)))

    def _is_followed(self, cell: Cell) -> bool:
        """Whether the cell answers, and the summaries include all events up to its first answer."""
        try:
            head = cell.read(feed.read_head)
        except errors.CellUnavailable:
            self._heads.pop(cell.uuid, None)
            return False
        if self._database.read(events.read_cursor, cell.uuid) < self._heads.setdefault(cell.uuid, head):
            return False
        del self._heads[cell.uuid]
        return True
