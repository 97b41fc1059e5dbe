"""Look in the cells for servers whose requests have waited long: a server that a cell has is neither built again nor buried."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cells.cell import Cell
from cells.fan_out import Answered, fan_out
from cells.instance_mapping import adopt_rows
from cells.registry import CellRegistry
from db.api.claims.claims import Ledger
from db.api.queue import leases
from db.cell import strays
from objects import errors

LOG = logging.getLogger(__name__)

LOOK_UP_AGE_S = 120.0
"""Seconds in the queue after which the cells are asked once. A restore that no mark revealed leaves such requests."""
LOOKED_UP_LIMIT = 10_000
"""Largest number of requests remembered as already looked for."""


class CellLookup:
    """Asks all cells that answer. A usual boot is younger than ``LOOK_UP_AGE_S`` and costs nothing."""

    def __init__(self, ledger: Ledger, registry: CellRegistry) -> None:
        self._ledger = ledger
        self._registry = registry
        self._looked_up: set[str] = set()

    def adopt_found(self, requests: Sequence[leases.LeasedRequest]) -> set[str]:
        """Adopt requests that have a row beyond STAGED in a cell; returns their UUIDs. They are no requests any more."""
        now = self._ledger.database.current_time()
        old = [
            r
            for r in requests
            if r.deadline < now or (r.created_at < now - LOOK_UP_AGE_S and r.instance_uuid not in self._looked_up)
        ]
        uuids = [request.instance_uuid for request in old]
        if not uuids:
            return set()
        if len(self._looked_up) > LOOKED_UP_LIMIT:
            self._looked_up.clear()
        self._looked_up.update(uuids)
        adopted: set[str] = set()
        for answer in fan_out(self._registry.list_cells(), strays.list_strays, uuids):
            if isinstance(answer, Answered) and answer.value:
                adopted.update(adopt_rows(self._ledger, answer.cell, [stray.row.uuid for stray in answer.value]))
        if adopted:
            LOG.warning("%d queued servers were in their cells already: adopted them instead of building them again", len(adopted))
        return adopted

    def adopt_refused(self, cell: Cell, uuids: Sequence[str]) -> None:
        """Adopt rows that could not be overwritten by staging: a live one was handed over, unless its server is decided."""
        try:
            adopted = adopt_rows(self._ledger, cell, uuids)
        except errors.CellUnavailable as error:
            LOG.warning("%d rows that could not be staged are checked again later: %s", len(uuids), error)
            return
        if adopted:
            LOG.warning(
                "cell %s: %d servers were there already: adopted them instead of building them again", cell.name, len(adopted)
            )
