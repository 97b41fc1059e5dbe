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
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.query_parameters import refuse_unknown_names
from api.http.validation import VersionedValidator, is_uuid, read_body, validated_by
from api.lookup.hosts import HostWatch
from api.lookup.server_view import UNKNOWN_STATUS, format_micro
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
        self._validator = VersionedValidator([*actions, (Microversion.SERVICE_UUIDS.value, schemas.service_change())])

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """A cell that does not answer is named in a header. Since 2.69 its hosts are listed, as UNKNOWN."""
        call = calls.get_call(req)
        refuse_unknown_names(req, call, ("host", "binary"))
        entries = self.list_entries(resp, call)
        filters = {name: value for name in ("host", "binary") if (value := req.get_param(name))}
        send_json(resp, {"services": [entry for entry in entries if filters.items() <= entry.items()]})

    def list_entries(self, resp: falcon.Response, call: Call) -> list[dict[str, Any]]:
        """All services. A cell that does not answer is named in a header of ``resp``."""
        level, zones = self._database.read(_api_level)
        answers = fan_out_within(self._settings.cell_timeout, self._registry.list_cells(), _cell_services)
        entries = [
            *self._process_entries(level, call),
            *(
                entry
                for cell_answer in answers
                if isinstance(cell_answer, Answered)
                for entry in self._of_cell(cell_answer.value, zones, call)
            ),
        ]
        silent = [cell_answer.cell for cell_answer in answers if isinstance(cell_answer, Unanswered)]
        self._silences.name_silent_cells(resp, call, {cell.uuid: cell.database_silent_since or time.time() for cell in silent})
        if call.has_feature(Microversion.DOWN_CELLS):
            entries += [
                {"binary": COMPUTE, "host": host, "status": UNKNOWN_STATUS}
                for cell in silent
                for host in sorted(self._registry.hosts_of(cell.uuid))
            ]
        return entries

    @validated_by("_validator")
    def on_put_one(self, req: falcon.Request, resp: falcon.Response, service_id: str) -> None:
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        if call.has_feature(Microversion.SERVICE_UUIDS):
            send_json(resp, {"service": self._update_service(call, service_id, document)})
        else:
            send_json(resp, {"service": self._run_action(call, service_id, document)})

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, service_id: str) -> None:
        """Forget a service that has ended, and the host of an agent with it.

        Raises errors.Conflict while it runs, or while the host has servers.
        """
        call = calls.get_call(req)
        if not (is_uuid(service_id) if call.has_feature(Microversion.SERVICE_UUIDS) else service_id.isdecimal()):
            raise errors.Invalid(f"Invalid {'uuid' if call.has_feature(Microversion.SERVICE_UUIDS) else 'id'} {service_id[:80]}")
        service = self._find_service(service_id, call)
        if isinstance(service, FoundProcess):
            self._forget_process(service.process, service.cell)
        else:
            host, silence = service.host, self._settings.service_down_time
            service.cell.with_timeout(self._settings.cell_timeout).write(host_removal.from_cell, host, AGENT_BINARY, silence)
            with suppress(errors.NotFound):  # it was never mapped
                self._database.write(api_host_removal.from_api, host)
            LOG.info("host %s of cell %s was deleted, by user %s", host, service.cell.name, call.context.user_id)
        resp.status = 204

    def _forget_process(self, process: Process, cell: Cell | None) -> None:
        if process.age <= self._settings.service_down_time:
            raise errors.Conflict(f"Service {process.uuid} runs: stop it first")
        if cell is None:
            self._database.write(processes.end_process, "api", process.uuid)
        else:
            cell.with_timeout(self._settings.cell_timeout).write(processes.end_process, "cell", process.uuid)

    # -- from 2.53 on ------------------------------------------------------------------------------------------------------------

    def _update_service(self, call: Call, service_id: str, document: dict[str, Any]) -> dict[str, Any]:
        if not is_uuid(service_id):
            raise errors.Invalid(f"Invalid uuid {service_id[:80]}")
        self._validator.check_body(call.version, document)
        change = _change_of(document)
        service = self._find_service(service_id, call)
        if isinstance(service, FoundProcess):
            raise _not_compute(BINARIES.get(service.process.binary, service.process.binary))
        _, zones = self._database.read(_api_level)
        return self._agent_entry(self._order_change(call, service.cell, service.host, change), zones, call)

    def _find_service(self, wanted_id: str, call: Call) -> FoundAgent | FoundProcess:
        """The service with this ID. Raises errors.NotFound, and errors.CellUnavailable while a cell does not answer."""
        level = self._database.read(processes.list_all, "api")
        answers = fan_out_within(self._settings.cell_timeout, self._registry.list_cells(), _cell_services)
        every: list[FoundAgent | FoundProcess] = [FoundProcess(process.uuid, process, None) for process in level]
        for cell_answer in answers:
            if isinstance(cell_answer, Answered):
                every += [
                    FoundAgent(agent.service.uuid, agent.service.host, cell_answer.cell) for agent in cell_answer.value.agents
                ]
                every += [FoundProcess(process.uuid, process, cell_answer.cell) for process in cell_answer.value.conductors]
        for candidate in every:
            if str(service_id(candidate.uuid, call)) == wanted_id:
                return candidate
        silent = [
            *(cell_answer.reason for cell_answer in answers if isinstance(cell_answer, Unanswered)),
            *self._registry.reasons_by_uuid().values(),
        ]
        if silent:
            raise errors.CellUnavailable(f"Service {wanted_id} was not found in the cells that answer: {silent[0]}")
        raise errors.NotFound(f"Service {wanted_id} could not be found.")

    # -- before ------------------------------------------------------------------------------------------------------------------

    def _run_action(self, call: Call, action: str, document: dict[str, Any]) -> dict[str, Any]:
        if action not in (*ACTIONS, FORCE_DOWN) or (action == FORCE_DOWN and not call.has_feature(Microversion.FORCED_DOWN)):
            raise errors.NotFound("Unknown action")
        self._validator.check_body(call.version, document)
        change, reply = _action_of(action, document)
        if document["binary"] != COMPUTE:
            raise _not_compute(document["binary"])
        host: str = document["host"]
        self.change_host(call, host, change)
        return {"host": host, "binary": COMPUTE} | reply

    def change_host(self, call: Call, host: str, change: HostChange) -> None:
        """Tell the cell of a host. Raises errors.NotFound for a host that is in none."""
        try:
            cell = self._registry.of_host(host)
        except errors.HostNotMapped:
            raise errors.NotFound(f"Compute host {host[:80]} could not be found.") from None
        self._order_change(call, cell, host, change)

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _order_change(self, call: Call, cell: Cell, host: str, change: HostChange) -> SeenService:
        agent = host_service.change_agent(cell, self._ledger, host, change, self._settings.cell_timeout)
        self._watch.invalidate_views()
        said = {"disabled": change.disabled, "forced_down": change.forced_down}
        LOG.info("host %s of cell %s: %s, by user %s", host, cell.name, said, call.context.user_id)
        return agent

    def _of_cell(self, cell_services: CellServices, zones: Mapping[str, str], call: Call) -> Iterator[dict[str, Any]]:
        yield from self._process_entries(cell_services.conductors, call)
        yield from (self._agent_entry(agent, zones, call) for agent in cell_services.agents)

    def _agent_entry(self, agent: SeenService, zones: Mapping[str, str], call: Call) -> dict[str, Any]:
        service = agent.service
        entry = {
            "id": service_id(service.uuid, call),
            "binary": COMPUTE,
            "host": service.host,
            "zone": zones.get(service.host, self._settings.default_availability_zone),
            "status": "disabled" if service.disabled else "enabled",
            "state": "up" if self._watch.agent_status(agent) in ("UP", "MAINTENANCE") else "down",
            "updated_at": format_micro(service.last_seen),
            "disabled_reason": service.disabled_reason,
        }
        return entry | ({"forced_down": service.forced_down} if call.has_feature(Microversion.FORCED_DOWN) else {})

    def _process_entries(self, records: Iterable[Process], call: Call) -> Iterator[dict[str, Any]]:
        for process in records:
            if process.binary in BINARIES:
                entry = {
                    "id": service_id(process.uuid, call),
                    "binary": BINARIES[process.binary],
                    "host": process.host,
                    "zone": INTERNAL_ZONE,
                    "status": "enabled",
                    "state": "up" if process.age <= self._settings.service_down_time else "down",
                    "updated_at": format_micro(process.last_seen),
                    "disabled_reason": None,
                }
                yield entry | ({"forced_down": False} if call.has_feature(Microversion.FORCED_DOWN) else {})


def _api_level(tx: ApiTransaction) -> tuple[list[Process], dict[str, str]]:
    """The processes of the API level, and the zones of hosts that are not in the default one."""
    zones = {
        host: zone for aggregate in aggregates.list_all(tx) if (zone := aggregate.availability_zone) for host in aggregate.hosts
    }
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
    return uuid if call.has_feature(Microversion.SERVICE_UUIDS) else zlib.crc32(uuid.encode()) >> 1
