"""Deletes decided at the API level, carried into the cells until each cell has them."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from cells.registry import CellRegistry
from conductor.orders import send_deletes
from db import instances, mappings
from db.engine import Database
from objects import errors
from objects.context import RequestContext
from objects.instance import Server, State
from service.complaints import Complaints
from service.steps import step

LOG = logging.getLogger(__name__)

PAGE = 500


class Deleter:
    """Each call may be repeated at any time: a cell that has the delete already changes nothing."""

    def __init__(self, api_database: Database, registry: CellRegistry, resend_age: float = 0.0) -> None:
        """``resend_age``: seconds that the sweep gives the cell to carry out what it was just told."""
        self._database = api_database
        self._registry = registry
        self._resend_age = resend_age
        self._complaints = Complaints(LOG)

    def carry_out(self, uuids: Iterable[str], request_id: str | None = None) -> None:
        """Deletes that were just decided, by this request."""
        found = [self._database.read(mappings.get, uuid) for uuid in uuids]
        self._carry([server for server in found if server is not None and server.deleted], request_id)

    def sweep(self) -> None:
        """Every delete that no cell has confirmed for a while, one page of uuids after the other."""
        after = ""
        while servers := self._database.read(mappings.deleting, PAGE, after):
            told_before = time.time() - self._resend_age
            self._carry([server for server in servers if server.updated_at <= told_before])
            after = servers[-1].uuid

    def _carry(self, servers: Sequence[Server], request_id: str | None = None) -> None:
        by_cell: dict[str, list[str]] = defaultdict(list)
        for server in servers:
            if server.cell_uuid is not None:
                by_cell[server.cell_uuid].append(server.uuid)
        for cell_uuid, uuids in by_cell.items():
            try:
                self._carry_into(cell_uuid, uuids, request_id)
            except errors.NotFound as error:
                if not self._database.write(mappings.ended_with_cell, uuids, time.time()):
                    self._complaints(cell_uuid, logging.WARNING, "%d deletes wait for cell %s: %s", len(uuids), cell_uuid, error)
            except (errors.CellUnavailable, errors.DatabaseUnavailable) as error:
                self._complaints(cell_uuid, logging.WARNING, "%d deletes wait for cell %s: %s", len(uuids), cell_uuid, error)

    def _carry_into(self, cell_uuid: str, uuids: Sequence[str], request_id: str | None) -> None:
        cell = self._registry.get(cell_uuid)
        rows = cell.write(instances.delete, uuids, time.time(), request_id)
        if cell.mapping.is_cell0:  # it has no feed that would tell
            gone = [uuid for uuid, row in rows.items() if row.state is State.DELETED]
            self._database.write(mappings.ended, gone, time.time())
            return
        for uuid, row in rows.items():
            step(LOG, "delete told", uuid, request_id, cell=cell.name, host=row.host, state=row.state)
        deleting = [row for row in rows.values() if row.state is State.DELETING]
        send_deletes(cell, RequestContext(request_id=f"delete-{cell.name}"), deleting)
