"""Take over that a server was built, before its cell's feed tells it."""

from __future__ import annotations

import logging

from cells.catch_up import apply_rows
from cells.registry import CellRegistry
from db.api.claims.claims import Ledger
from db.cell import rebuild
from objects import errors, feed_check
from objects.cell import CELL0_UUID
from objects.feed import EventKind
from objects.instance import Server
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)


class CatchUp:
    """A client acts on a server as soon as its cell shows it as ACTIVE. The guards of actions read the API database, which the feed
    updates a moment later.
    """

    def __init__(self, ledger: Ledger, registry: CellRegistry, timeout: float) -> None:
        """``timeout``: seconds to wait for a cell."""
        self._ledger = ledger
        self._registry = registry
        self._timeout = timeout
        self._complaints = RateLimitedLog(LOG)

    def apply_build(self, server: Server) -> None:
        """If the server is building here and ACTIVE in its cell, apply its row as a reader of the feed would.

        Does nothing if the cell does not answer or its row cannot be applied: the guards then refuse the action.
        """
        if server.state != "building" or server.cell_uuid in (None, CELL0_UUID):
            return
        try:
            cell = self._registry.get(server.cell_uuid or "")
            now = self._ledger.database.current_time()
            read = cell.with_timeout(self._timeout).read(rebuild.snapshot_of, [server.body_uuid], now)
            events = [feed_check.checked_event(event) for event in read.events]
            if not any(event.kind is EventKind.ACTIVE for event in events):
                return
            apply_rows(self._ledger, cell, events)
        except (errors.CellUnavailable, errors.NotFound, errors.Invalid) as error:
            self._complaints(str(error), logging.WARNING, "instance %s: its cell is not heard: %s", server.uuid, error)
