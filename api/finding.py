"""One server, as fresh as it can be had: the mapping says where it is, its cell says how it is."""

from __future__ import annotations

import logging

import msgspec

from api.call import Call
from api.opts import Settings
from api.validation import is_uuid
from cells.registry import CellRegistry
from db import instances, mappings
from db.engine import Database
from objects import errors
from objects.base import Object
from objects.cell import CELL0_UUID
from objects.instance import Instance, Server, State
from objects.spec import RequestSpec

LOG = logging.getLogger(__name__)

_STATES = {
    State.STAGED: "building",
    State.SCHEDULED: "building",
    State.BUILDING: "building",
    State.ACTIVE: "active",
    State.ERROR: "error",
    State.DELETING: "deleting",
    State.DELETED: "deleted",
}
"""State of the row in the cell -> state of the server."""


class Found(Object, frozen=True, kw_only=True):
    """``row`` is what the cell holds; None where there is nothing to ask, or where the cell does not answer (``silent``)."""

    server: Server
    spec: RequestSpec | None
    row: Instance | None = None
    silent: bool = False


class Finder:
    """Looks servers up, one at a time."""

    def __init__(self, settings: Settings, database: Database, registry: CellRegistry) -> None:
        self._settings = settings
        self._database = database
        self._registry = registry

    def find(self, uuid: str, call: Call) -> Found:
        """The server, if the caller may see it. Raises errors.NotFound, for a deleted one too."""
        server = self._database.read(mappings.get, uuid, call.scope) if is_uuid(uuid) else None
        if server is None or server.deleted:
            raise missing(uuid)
        spec = self._database.read(mappings.specs, [server.batch_id]).get(server.batch_id)
        return self._ask_cell(server, spec)

    def _ask_cell(self, server: Server, spec: RequestSpec | None) -> Found:
        if server.cell_uuid in (None, CELL0_UUID):  # what is buried was decided with its reason, in the API database
            return Found(server=server, spec=spec)
        try:
            cell = self._registry.get(server.cell_uuid)
            row = cell.within(self._settings.cell_timeout).read(instances.get, server.uuid)
        except (errors.CellUnavailable, errors.NotFound) as error:
            LOG.info("instance %s is shown from its summary: %s", server.uuid, error)
            return Found(server=server, spec=spec, silent=True)
        if row is None:
            return Found(server=server, spec=spec)
        return Found(server=_overlaid(server, row), spec=spec, row=row)


def missing(uuid: str) -> errors.NotFound:
    return errors.NotFound(f"Instance {uuid[:80]} could not be found.")


def _overlaid(server: Server, row: Instance) -> Server:
    return msgspec.structs.replace(
        server,
        state=_STATES[row.state],
        host=row.host,
        node=row.node,
        availability_zone=row.availability_zone,
        launched_at=row.launched_at,
        terminated_at=row.terminated_at,
        fault=row.fault or server.fault,
    )
