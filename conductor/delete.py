"""Send deletes decided at the API level to the cells, until each cell has confirmed them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

from cells.cell import Cell
from cells.registry import CellRegistry
from conductor.orders import send_deletes
from conductor.quarantine import Quarantine
from db.api.queue.due import SweepsDue
from db.api.servers import mappings
from db.cell import instances
from db.sql.engine import ApiDatabase
from objects import errors
from objects.context import RequestContext
from objects.instance import Server, State
from service.logs import log_step
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

DELETE_PAGE_SIZE = 500

STEP = "delete"
"""The step of dead letters about deletes that a cell cannot carry out. Their keys are the UUIDs of the instances."""


class Deleter:
    """Each call may be repeated at any time: a cell that has the delete already changes nothing."""

    name = "deletes"

    def __init__(
        self,
        api_database: ApiDatabase,
        registry: CellRegistry,
        resend_age: float = 0.0,
        aside: Quarantine | None = None,
        *,
        page: int = DELETE_PAGE_SIZE,
    ) -> None:
        """``resend_age``: seconds that the sweep waits for a cell to confirm a delete. ``page``: deletes read at once."""
        self._aside = aside or Quarantine(api_database, "api")
        self._page = page
        self._database = api_database
        self._registry = registry
        self._resend_age = resend_age
        self._complaints = RateLimitedLog(LOG)

    def carry_out(self, uuids: Iterable[str], request_id: str | None = None) -> None:
        """Carry out deletes of bodies that were just decided, by the request ``request_id``."""
        servers = self._database.read(mappings.of_bodies, uuids)
        self._carry_to_cells([server for server in servers if server.deleted], request_id)

    def has_work(self, due: SweepsDue) -> bool:
        return due.deletes

    def run_round(self) -> None:
        """Send again every delete that its cell has not confirmed within ``resend_age``, page by page."""
        after = ""
        while servers := self._database.read(mappings.list_deleting, self._page, after):
            told_before = self._database.current_time() - self._resend_age
            self._carry_to_cells([server for server in servers if server.updated_at <= told_before])
            after = servers[-1].body_uuid

    def _carry_to_cells(self, servers: Sequence[Server], request_id: str | None = None) -> None:
        by_cell: dict[str, list[str]] = defaultdict(list)
        for server in servers:
            if server.cell_uuid is not None:
                by_cell[server.cell_uuid].append(server.body_uuid)
        for cell_uuid, uuids in by_cell.items():
            try:
                cell = self._registry.get(cell_uuid)  # a missing cell is not an item's fault
                self._aside.run(STEP, partial(self._carry_into, cell, request_id), uuids)
            except errors.NotFound as error:
                if not self._database.write(mappings.ended_with_cell, uuids, self._database.current_time()):
                    self._complaints(cell_uuid, logging.WARNING, "%d deletes wait for cell %s: %s", len(uuids), cell_uuid, error)
            except (errors.CellUnavailable, errors.DatabaseUnavailable) as error:
                self._complaints(cell_uuid, logging.WARNING, "%d deletes wait for cell %s: %s", len(uuids), cell_uuid, error)

    def _carry_into(self, cell: Cell, request_id: str | None, uuids: Sequence[str]) -> None:
        rows = cell.write(instances.delete, uuids, cell.current_time(), request_id)
        if cell.current_mapping.is_cell0:  # it has no feed to confirm the deletes
            gone = [uuid for uuid, row in rows.items() if row.state is State.DELETED]
            self._database.write(mappings.confirm_deletes, gone, self._database.current_time())
            return
        cell.asked()
        for uuid, row in rows.items():
            log_step(LOG, "delete told", uuid, request_id, cell=cell.name, host=row.host, state=row.state)
        deleting = [row for row in rows.values() if row.state is State.DELETING]
        send_deletes(cell, RequestContext(request_id=f"delete-{cell.name}"), deleting)
