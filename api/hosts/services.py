"""``/os-services``: the processes of the deployment, and what operators and fencing systems say of hosts.

Binaries have the Compute API's names, by which its clients ask.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.call import Call
from api.http.microversions import Since
from api.http.query_parameters import refuse_unknown_names
from api.http.validation import VersionedValidator, is_uuid, read_body, validated_by
from api.http.versions import answer
from api.lookup.hosts import HostWatch
from api.lookup.server_view import UNKNOWN_STATUS, micro
from api.lookup.silence import Silences
from api.opts import ApiSettings
from cells import host_service
from cells.cell import Cell
from cells.fan_out import Answered, Unanswered, fan_out_within
from cells.host_service import HostChange
from cells.registry import CellRegistry
from db import processes
from db.api.claims.claims import Ledger
from db.api.deployment import aggregates
from db.api.deployment import host_removal as api_host_removal
from db.cell import host_removal, services
from db.cell.services import SeenService
from db.sql.connection import ApiTransaction, CellTransaction
from objects import errors
from objects.process import AGENT_BINARY, CONDUCTOR_BINARY, SCHEDULER_BINARY, Process

LOG = logging.getLogger(__name__)

COMPUTE = "nova-compute"
BINARIES = {AGENT_BINARY: COMPUTE, CONDUCTOR_BINARY: "nova-conductor", SCHEDULER_BINARY: "nova-scheduler"}
"""The Compute API's names of binaries. Like there, APIs are not listed."""

INTERNAL_ZONE = "internal"
"""The zone of all services but agents."""

ACTIONS = ("enable", "disable", "disable-log-reason")
FORCE_DOWN = "force-down"


class CellServices(NamedTuple):
    """What one cell tells."""

    conductors: list[Process]
    agents: list[SeenService]


class FoundAgent(NamedTuple):
    """The agent of a host."""

    uuid: str
    host: str
    cell: Cell


class FoundProcess(NamedTuple):
    """Any other service. ``cell``: None at the API level."""

    uuid: str
    process: Process
    cell: Cell | None


class Services:
    """Lists the services of all cells, and changes those of hosts: before 2.53 by host and binary, then by their IDs."""

    def __init__(self, settings: ApiSettings, ledger: Ledger, registry: CellRegistry, watch: HostWatch, silences: Silences) -> None:
        self._settings = settings
        self._ledger = ledger
        self._database = ledger.database
        self._registry = registry
        self._watch = watch
        self._silences = silences
        actions = [(since, schemas.service_action(since)) for since in schemas.SERVICE_ACTION_CHANGES]
        self._validator = VersionedValidator([*actions, (Since.SERVICE_UUIDS.value, schemas.service_change())])

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """A cell that does not answer is named in a header. Since 2.69 its hosts are listed, as UNKNOWN."""
        call = calls.of(req)
        refuse_unknown_names(req, call, ("host", "binary"))
        entries = self.entries(resp, call)
        wanted = {name: value for name in ("host", "binary") if (value := req.get_param(name))}
        answer(resp, {"services": [entry for entry in entries if wanted.items() <= entry.items()]})

    def entries(self, resp: falcon.Response, call: Call) -> list[dict[str, Any]]:
        """All services. A cell that does not answer is named in a header of ``resp``."""
        level, zones = self._database.read(_api_level)
        answers = fan_out_within(self._settings.cell_timeout, self._registry.cells(), _cell_services)
        entries = [
            *self._processes(level, call),
            *(entry for each in answers if isinstance(each, Answered) for entry in self._of_cell(each.value, zones, call)),
        ]
        silent = [each.cell for each in answers if isinstance(each, Unanswered)]
        self._silences.tell(resp, call, {cell.uuid: cell.database_silent_since or time.time() for cell in silent})
        if call.has(Since.DOWN_CELLS):
            entries += [
                {"binary": COMPUTE, "host": host, "status": UNKNOWN_STATUS}
                for cell in silent
                for host in sorted(self._registry.hosts_of(cell.uuid))
            ]
        return entries

    @validated_by("_validator")
    def on_put_one(self, req: falcon.Request, resp: falcon.Response, service_id: str) -> None:
        call = calls.of(req)
        document = read_body(req, self._settings.max_body_size)
        if call.has(Since.SERVICE_UUIDS):
            answer(resp, {"service": self._put(call, service_id, document)})
        else:
            answer(resp, {"service": self._act(call, service_id, document)})

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, service_id: str) -> None:
        """Forget a service that has ended, and the host of an agent with it.

        Raises errors.Conflict while it runs, or while the host has servers.
        """
        call = calls.of(req)
        if not (is_uuid(service_id) if call.has(Since.SERVICE_UUIDS) else service_id.isdecimal()):
            raise errors.Invalid(f"Invalid {'uuid' if call.has(Since.SERVICE_UUIDS) else 'id'} {service_id[:80]}")
        found = self._find(service_id, call)
        if isinstance(found, FoundProcess):
            self._forget(found.process, found.cell)
        else:
            host, silence = found.host, self._settings.service_down_time
            found.cell.within(self._settings.cell_timeout).write(host_removal.from_cell, host, AGENT_BINARY, silence)
            with suppress(errors.NotFound):  # it was never mapped
                self._database.write(api_host_removal.from_api, host)
            LOG.info("host %s of cell %s was deleted, by user %s", host, found.cell.name, call.context.user_id)
        resp.status = 204

    def _forget(self, process: Process, cell: Cell | None) -> None:
        if process.age <= self._settings.service_down_time:
            raise errors.Conflict(f"Service {process.uuid} runs: stop it first")
        if cell is None:
            self._database.write(processes.end, "api", process.uuid)
        else:
            cell.within(self._settings.cell_timeout).write(processes.end, "cell", process.uuid)

    # -- from 2.53 on ------------------------------------------------------------------------------------------------------------

    def _put(self, call: Call, service_id: str, document: dict[str, Any]) -> dict[str, Any]:
        if not is_uuid(service_id):
            raise errors.Invalid(f"Invalid uuid {service_id[:80]}")
        self._validator.check(call.version, document)
        change = _change_of(document)
        found = self._find(service_id, call)
        if isinstance(found, FoundProcess):
            raise _not_compute(BINARIES.get(found.process.binary, found.process.binary))
        _, zones = self._database.read(_api_level)
        return self._agent(self._tell(call, found.cell, found.host, change), zones, call)

    def _find(self, wanted: str, call: Call) -> FoundAgent | FoundProcess:
        """The service with this ID. Raises errors.NotFound, and errors.CellUnavailable while a cell does not answer."""
        level = self._database.read(processes.list_all, "api")
        answers = fan_out_within(self._settings.cell_timeout, self._registry.cells(), _cell_services)
        every: list[FoundAgent | FoundProcess] = [FoundProcess(process.uuid, process, None) for process in level]
        for each in answers:
            if isinstance(each, Answered):
                every += [FoundAgent(agent.service.uuid, agent.service.host, each.cell) for agent in each.value.agents]
                every += [FoundProcess(process.uuid, process, each.cell) for process in each.value.conductors]
        for found in every:
            if str(service_id(found.uuid, call)) == wanted:
                return found
        silent = [*(each.reason for each in answers if isinstance(each, Unanswered)), *self._registry.broken().values()]
        if silent:
            raise errors.CellUnavailable(f"Service {wanted} was not found in the cells that answer: {silent[0]}")
        raise errors.NotFound(f"Service {wanted} could not be found.")

    # -- before ------------------------------------------------------------------------------------------------------------------

    def _act(self, call: Call, action: str, document: dict[str, Any]) -> dict[str, Any]:
        if action not in (*ACTIONS, FORCE_DOWN) or (action == FORCE_DOWN and not call.has(Since.FORCED_DOWN)):
            raise errors.NotFound("Unknown action")
        self._validator.check(call.version, document)
        change, told = _action_of(action, document)
        if document["binary"] != COMPUTE:
            raise _not_compute(document["binary"])
        host: str = document["host"]
        self.change(call, host, change)
        return {"host": host, "binary": COMPUTE} | told

    def change(self, call: Call, host: str, change: HostChange) -> None:
        """Tell the cell of a host. Raises errors.NotFound for a host that is in none."""
        try:
            cell = self._registry.of_host(host)
        except errors.HostNotMapped:
            raise errors.NotFound(f"Compute host {host[:80]} could not be found.") from None
        self._tell(call, cell, host, change)

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _tell(self, call: Call, cell: Cell, host: str, change: HostChange) -> SeenService:
        agent = host_service.change(cell, self._ledger, host, change, self._settings.cell_timeout)
        self._watch.forget()
        said = {"disabled": change.disabled, "forced_down": change.forced_down}
        LOG.info("host %s of cell %s: %s, by user %s", host, cell.name, said, call.context.user_id)
        return agent

    def _of_cell(self, told: CellServices, zones: Mapping[str, str], call: Call) -> Iterator[dict[str, Any]]:
        yield from self._processes(told.conductors, call)
        yield from (self._agent(agent, zones, call) for agent in told.agents)

    def _agent(self, agent: SeenService, zones: Mapping[str, str], call: Call) -> dict[str, Any]:
        service = agent.service
        entry = {
            "id": service_id(service.uuid, call),
            "binary": COMPUTE,
            "host": service.host,
            "zone": zones.get(service.host, self._settings.default_availability_zone),
            "status": "disabled" if service.disabled else "enabled",
            "state": "up" if self._watch.judge(agent) in ("UP", "MAINTENANCE") else "down",
            "updated_at": micro(service.last_seen),
            "disabled_reason": service.disabled_reason,
        }
        return entry | ({"forced_down": service.forced_down} if call.has(Since.FORCED_DOWN) else {})

    def _processes(self, found: Iterable[Process], call: Call) -> Iterator[dict[str, Any]]:
        for process in found:
            if process.binary in BINARIES:
                entry = {
                    "id": service_id(process.uuid, call),
                    "binary": BINARIES[process.binary],
                    "host": process.host,
                    "zone": INTERNAL_ZONE,
                    "status": "enabled",
                    "state": "up" if process.age <= self._settings.service_down_time else "down",
                    "updated_at": micro(process.last_seen),
                    "disabled_reason": None,
                }
                yield entry | ({"forced_down": False} if call.has(Since.FORCED_DOWN) else {})


def _api_level(tx: ApiTransaction) -> tuple[list[Process], dict[str, str]]:
    """The processes of the API level, and the zones of hosts that are not in the default one."""
    zones = {host: zone for each in aggregates.list_all(tx) if (zone := each.availability_zone) for host in each.hosts}
    return processes.list_all(tx, "api"), zones


def _cell_services(tx: CellTransaction) -> CellServices:
    return CellServices(processes.list_all(tx, "cell"), services.list_seen(tx, AGENT_BINARY))


def _change_of(document: dict[str, Any]) -> HostChange:
    """What a body of 2.53 asks for. Raises errors.Invalid."""
    disabled = {"disabled": True, "enabled": False}.get(document.get("status", ""))
    reason = document.get("disabled_reason")
    if disabled is False and reason is not None:
        raise errors.Invalid("Specifying 'disabled_reason' with status 'enabled' is invalid.")
    forced_down = schemas.BOOLEANS[document["forced_down"]] if "forced_down" in document else None
    if disabled is None and forced_down is None:
        raise errors.Invalid("No updates were requested. Fields 'status' or 'forced_down' should be specified.")
    return HostChange(disabled=disabled, reason=reason, forced_down=forced_down)


def _action_of(action: str, document: dict[str, Any]) -> tuple[HostChange, dict[str, Any]]:
    """What an action asks for, and what is answered. Raises errors.Invalid."""
    match action:
        case "enable":
            return HostChange(disabled=False), {"status": "enabled"}
        case "disable":
            return HostChange(disabled=True), {"status": "disabled"}
        case "disable-log-reason":
            if (reason := document.get("disabled_reason")) is None:
                raise errors.Invalid("Missing disabled reason field")
            return HostChange(disabled=True, reason=reason), {"status": "disabled", "disabled_reason": reason}
        case _:
            if "forced_down" not in document:
                raise errors.Invalid("Missing forced_down field")
            forced_down = schemas.BOOLEANS[document["forced_down"]]
            return HostChange(forced_down=forced_down), {"forced_down": forced_down}


def _not_compute(binary: str) -> errors.Invalid:
    return errors.Invalid(f"Updating a {binary} service is not supported. Only {COMPUTE} services can be updated.")


def service_id(uuid: str, call: Call) -> str | int:
    """How the service is named: before 2.53 by a number, which no request takes."""
    return uuid if call.has(Since.SERVICE_UUIDS) else zlib.crc32(uuid.encode()) >> 1
