"""Find one server with its latest state: the mapping names its cell, and the cell knows its state."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import msgspec

from api.http.call import Call
from api.http.validation import is_uuid
from api.opts import ApiSettings
from cells.registry import CellRegistry
from db.api.claims import decisions, server_groups
from db.api.deployment import silences
from db.api.operations import operations
from db.api.servers import addresses, mappings
from db.api.servers import ports as project_ports
from db.cell import actions, instances
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors, stored
from objects.action import Action, ActionKind, Started, action_with_events, of_operation
from objects.base import Object
from objects.cell import CELL0_UUID
from objects.context import request_of
from objects.decision import Decision
from objects.instance import Instance, Server, State
from objects.operation import Operation
from objects.port import Port, ProjectPort
from objects.spec import RequestSpec
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

_STATES = {
    State.STAGED: "building",
    State.SCHEDULED: "building",
    State.BUILDING: "building",
    State.ACTIVE: "active",
    State.ERROR: "error",
    State.DELETING: "deleting",
    State.DELETED: "deleted",
    State.UNKNOWN: "building",
}
"""State of the row in the cell -> state of the server."""


class FoundServer(Object, frozen=True, kw_only=True):
    """``list_ports``: its network interfaces. ``groups``: the uuid of its server group, if it has one. ``row`` is the cell's row;
    None if there is no cell to ask, or if it does not answer.

    ``silent`` is then that cell's uuid, with the time since when it has not answered (seconds since the epoch).
    """

    server: Server
    spec: RequestSpec | None
    row: Instance | None = None
    silent: dict[str, float] = {}  # noqa: RUF012 - copied by msgspec
    ports: tuple[Port, ...] = ()
    groups: tuple[str, ...] = ()


class Finder:
    """Finds one server at a time."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, registry: CellRegistry) -> None:
        self._settings = settings
        self._database = database
        self._registry = registry
        self._complaints = RateLimitedLog(LOG)

    def find_server(self, uuid: str, call: Call, *, deleted: bool = False) -> FoundServer:
        """The server, if the caller may see it. Raises errors.NotFound; also for a deleted server unless ``deleted``."""
        stored_server = self._find_stored(uuid, call, deleted=deleted)
        if stored_server.server.state == "error" and stored_server.server.operation is None:
            # an operation that ended between the two reads has given the server another body: look again
            stored_server = self._find_stored(uuid, call, deleted=deleted)
        current = self._ask_cell(stored_server.server, stored_server.spec)
        return msgspec.structs.replace(current, ports=stored_server.ports, groups=stored_server.groups)

    def _find_stored(self, uuid: str, call: Call, *, deleted: bool) -> FoundServer:
        stored_server = self._database.read(_read_stored, uuid, call.project_scope) if is_uuid(uuid) else None
        if stored_server is None or (stored_server.server.deleted and not deleted):
            raise server_not_found(uuid)
        return stored_server

    def get_server(self, uuid: str, call: Call) -> Server:
        """The server as the API database knows it, if the caller may see it; no cell is asked. Raises errors.NotFound."""
        server = self._database.read(mappings.get, uuid, call.project_scope) if is_uuid(uuid) else None
        if server is None or server.deleted:
            raise server_not_found(uuid)
        return server

    def list_ports(self, server: Server) -> tuple[Port, ...]:
        """The network interfaces of the server."""
        return self._database.read(addresses.ports_of, [server.uuid]).get(server.uuid, ())

    def project_ports(self, server: Server) -> dict[str, ProjectPort]:
        """By MAC, the ports of its project that the server has."""
        return {port.mac: port for port in self._database.read(project_ports.of_servers, [server.uuid])}

    def project_port(self, uuid: str, project_id: str) -> ProjectPort:
        """A port that the project has made. Raises errors.NotFound."""
        port = self._database.read(project_ports.get, uuid)
        if port.project_id != project_id:
            raise errors.NotFound(f"Port {uuid} could not be found in the project of the server.")
        return port

    def find_open_operation(self, server: Server) -> Operation | None:
        """The open operation of the server."""
        return self._database.read(operations.open_for, [server.uuid]).get(server.uuid)

    def list_actions(self, current: FoundServer) -> list[Action]:
        """The actions of the server, oldest first.

        The create action is told from the request. Earlier releases stored it in the cell.
        """
        done = self._database.read(operations.of_server, current.server.uuid)
        every = [*self._first_and_last(current), *(of_operation(operation) for operation in done)]
        return sorted(every, key=lambda action: action.started_at)

    def _first_and_last(self, current: FoundServer) -> list[Action]:
        """The create, as the first body of the server tells of it, and the delete."""
        server, first = current.server, current
        if server.turn:  # a move has given it another body since
            body = self._database.read(mappings.of_bodies, [server.uuid])[0]
            first = self._ask_cell(body, self._database.read(mappings.specs_by_batch, [body.batch_id]).get(body.batch_id))
        batch_decisions = decisions_about(self._database.read(decisions.of_batch, first.server.batch_id), server.uuid)
        started = self._started_actions(first)
        if server.deleted_at is not None or first is not current:  # a cell knows when a delete came, and deletes bodies left behind
            started = [action for action in started if action.kind is not ActionKind.DELETE]
        every = [action_with_events(action, first.server, first.row, batch_decisions) for action in started]
        if server.deleted_at is not None:
            delete = Started(
                kind=ActionKind.DELETE,
                request_id=server.deleted_by,
                started_at=server.deleted_at,
                user_id=server.deleted_by_user,
            )
            every.append(action_with_events(delete, server, current.row))
        return every

    def _started_actions(self, current: FoundServer) -> list[Started]:
        """The actions of one body as its cell has recorded them, after the create."""
        started: list[Started] = []
        if current.row is not None:
            try:
                cell = self._registry.get(current.server.cell_uuid or "")
                started = cell.with_timeout(self._settings.cell_timeout).read(actions.read, current.server.body_uuid)
            except (errors.CellUnavailable, errors.NotFound) as error:
                text = "the actions of instance %s are not known: %s"
                self._complaints(str(error), logging.WARNING, text, current.server.uuid, error)
        if not any(action.kind is ActionKind.CREATE for action in started):
            request_id = current.spec.request_id if current.spec is not None else request_of(current.server.batch_id)
            started.insert(0, Started(kind=ActionKind.CREATE, request_id=request_id, started_at=current.server.created_at))
        return started

    def _ask_cell(self, server: Server, spec: RequestSpec | None) -> FoundServer:
        if (
            server.cell_uuid is None or server.cell_uuid == CELL0_UUID
        ):  # the API database holds the decision and the reason for a server in cell0
            return FoundServer(server=server, spec=spec)
        try:
            cell = self._registry.get(server.cell_uuid)
            row = cell.with_timeout(self._settings.cell_timeout).read(instances.get, server.body_uuid)
        except (errors.CellUnavailable, errors.NotFound) as error:
            if isinstance(error, errors.NotFound) and server.state == "error":  # it went to ERROR when its cell was removed
                return FoundServer(server=server, spec=spec)
            self._complaints(str(error), logging.WARNING, "instance %s is shown from its summary: %s", server.uuid, error)
            return FoundServer(server=server, spec=spec, silent={server.cell_uuid: self._silent_since(server.cell_uuid)})
        except (*stored.UNREADABLE, ValueError) as error:  # no release has written such a row
            self._complaints("row", logging.ERROR, "instance %s is shown from its summary: %s", server.uuid, error)
            return FoundServer(server=server, spec=spec)
        if row is None:
            return FoundServer(server=server, spec=spec)
        return FoundServer(server=_overlay_row(server, row), spec=spec, row=row)

    def _silent_since(self, cell_uuid: str) -> float:
        """The earlier of the times that the conductors and this process have noted."""
        noted = [silence.since for silence in self._database.read(silences.read) if silence.cell_uuid == cell_uuid]
        observed = [cell.database_silent_since for cell in self._registry.list_cells() if cell.uuid == cell_uuid]
        return min((since for since in (*noted, *observed) if since is not None), default=time.time())


def _read_stored(tx: ApiTransaction, uuid: str, project_id: str | None) -> FoundServer | None:
    """The server as the API database has it. One statement, unless it has ports, a group or operations."""
    shown = mappings.get_shown(tx, uuid, project_id)
    if shown is None:
        return None
    server, spec = shown.server, shown.spec
    if shown.operated:
        server = msgspec.structs.replace(server, operation=operations.open_for(tx, [server.uuid]).get(server.uuid))
    has_ports = spec is None or shown.operated or addresses.has_ports(spec.properties.networks)
    ports = addresses.ports_of(tx, [server.uuid]).get(server.uuid, ()) if has_ports else ()
    group = spec.group.uuid if spec is not None and spec.group is not None else None
    return FoundServer(
        server=server,
        spec=spec,
        ports=ports,
        groups=(group,) if group is not None and server_groups.is_stored(tx, group) else (),
    )


def decisions_about(batch_decisions: Sequence[Decision], uuid: str) -> list[Decision]:
    """The decisions about this server, without those about its siblings."""
    choices = [tuple(choice for choice in decision.choices if choice.instance_uuid == uuid) for decision in batch_decisions]
    return [
        msgspec.structs.replace(decision, choices=server_choices)
        for decision, server_choices in zip(batch_decisions, choices, strict=True)
        if server_choices
    ]


def server_not_found(uuid: str) -> errors.NotFound:
    return errors.NotFound(f"Instance {uuid[:80]} could not be found.")


def _overlay_row(server: Server, row: Instance) -> Server:
    undone = row.state is State.DELETING and row.rolled_back is not None
    return msgspec.structs.replace(
        server,
        state="rolling-back" if undone else _STATES[row.state],
        host=row.host,
        node=row.node,
        availability_zone=row.availability_zone,
        launched_at=row.launched_at,
        terminated_at=row.terminated_at,
        fault=row.fault or server.fault,
        power=row.power,
        task_number=row.task_number,
        task_state=row.task_state,
        task_fault=row.task_fault,
        task_stored=row.task_stored,
    )
