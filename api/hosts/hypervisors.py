"""``/os-hypervisors``: the nodes of all cells with their capacity and use, as their agents last reported them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import falcon

from api.hosts.services import service_id
from api.http import call as calls
from api.http import schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.paging import next_link, page_of
from api.http.query_parameters import refuse_unknown_names, whole_number
from api.lookup.hosts import HostWatch
from api.lookup.server_view import instance_name
from api.lookup.silence import Silences
from api.opts import ApiSettings
from cells.fan_out import Answered, Unanswered, fan_out_within
from cells.registry import CellRegistry
from db.api.claims import inventories
from db.api.servers import listing
from db.cell import compute_nodes, services
from db.cell.services import SeenService
from db.sql.connection import CellTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from objects.compute_node import ComputeNode
from objects.process import AGENT_BINARY

_NAMESPACE = uuid.UUID("0d9b6d27-6d3c-45c4-8a32-0b1f7d3f5f11")
"""Makes the UUIDs of nodes from their names."""
SUMS = {
    "vcpus": "vcpus",
    "memory_mb": "memory_mb",
    "local_gb": "disk_gb",
    "vcpus_used": "vcpus_used",
    "memory_mb_used": "memory_mb_used",
    "local_gb_used": "disk_gb_used",
    "running_vms": "running_vms",
    "current_workload": "queued_builds",
}
"""Fields of the Compute API that are amounts, and those of a node."""


class Hypervisor(NamedTuple):
    """A node of a host that is mapped to the cell which reports it. ``number``: its ID before 2.53; ``uuid``: from then on."""

    number: int
    uuid: str
    node: ComputeNode
    agent: SeenService | None


class Hypervisors:
    """The lists, one hypervisor (methods with suffix ``one``), and what versions before 2.88 have beside them.

    A cell that does not answer is named in a header, and its nodes are missing.
    """

    def __init__(
        self, settings: ApiSettings, database: ApiDatabase, registry: CellRegistry, watch: HostWatch, silences: Silences
    ) -> None:
        self._settings = settings
        self._database = database
        self._registry = registry
        self._watch = watch
        self._silences = silences

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._list(req, resp, detailed=False)

    def on_get_detail(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._list(req, resp, detailed=True)

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, hypervisor_id: str) -> None:
        call = calls.get_call(req)
        refuse_unknown_names(req, call, ("with_servers",))
        one = self._find_hypervisor(resp, call, hypervisor_id)
        send_json(resp, {"hypervisor": self._detail_document(one, call) | self._servers_field(one, call, _with_servers(req, call))})

    def on_get_uptime(self, req: falcon.Request, resp: falcon.Response, hypervisor_id: str) -> None:
        """Raises errors.NotOffered for a node whose driver does not report it, and errors.Invalid while its agent is down."""
        call = calls.get_call(req)
        one = self._find_hypervisor(resp, call, hypervisor_id)
        summary = self._summary_document(one, call)
        if not one.node.booted_at:
            raise errors.NotOffered(f"The driver of hypervisor '{one.node.node}' does not report its uptime.")
        if summary["state"] == "down":
            raise errors.Invalid(f"Compute service of {one.node.host} is unavailable at this time.")
        send_json(resp, {"hypervisor": summary | {"uptime": _format_uptime(one.node)}})

    def on_get_statistics(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Sums over the nodes of enabled hosts."""
        call = calls.get_call(req)
        enabled = [one for one in self._list_hypervisors(resp, call) if not _is_disabled(one)]
        sums = {name: sum(getattr(one.node, attribute) for one in enabled) for name, attribute in SUMS.items()}
        free = {"free_ram_mb": sums["memory_mb"] - sums["memory_mb_used"], "free_disk_gb": sums["local_gb"] - sums["local_gb_used"]}
        send_json(resp, {"hypervisor_statistics": sums | free | {"count": len(enabled), "disk_available_least": 0}})

    def on_get_search(self, req: falcon.Request, resp: falcon.Response, hypervisor_id: str) -> None:
        call = calls.get_call(req)
        send_json(
            resp, {"hypervisors": [self._summary_document(one, call) for one in self._list_matching(resp, call, hypervisor_id)]}
        )

    def on_get_servers(self, req: falcon.Request, resp: falcon.Response, hypervisor_id: str) -> None:
        call = calls.get_call(req)
        matching = self._list_matching(resp, call, hypervisor_id)
        send_json(
            resp,
            {
                "hypervisors": [
                    self._summary_document(one, call) | self._servers_field(one, call, with_servers=True) for one in matching
                ]
            },
        )

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _list(self, req: falcon.Request, resp: falcon.Response, *, detailed: bool) -> None:
        call = calls.get_call(req)
        refuse_unknown_names(req, call, ("limit", "marker", "hypervisor_hostname_pattern", "with_servers"))
        pattern = req.get_param("hypervisor_hostname_pattern") if call.has_feature(Microversion.SERVICE_UUIDS) else None
        with_servers = _with_servers(req, call)
        view = self._detail_document if detailed else self._summary_document
        if pattern is not None:
            if "limit" in req.params or "marker" in req.params:
                raise errors.Invalid(
                    "Paging over hypervisors with the hypervisor_hostname_pattern query parameter is not supported."
                )
            shown: Sequence[Hypervisor] = self._list_matching(resp, call, pattern)
            send_json(resp, {"hypervisors": [view(one, call) | self._servers_field(one, call, with_servers) for one in shown]})
            return
        every = self._list_hypervisors(resp, call)
        document: dict[str, Any] = {}
        shown = every
        if call.has_feature(Microversion.HYPERVISOR_PAGES):
            page = page_of(req, self._settings.max_limit)
            first = 0 if page.marker is None else 1 + _position_after(every, page.marker, call)
            shown = every[first : first + page.limit]
            if shown and len(every) > first + len(shown):
                path = "os-hypervisors/detail" if detailed else "os-hypervisors"
                document["hypervisors_links"] = [next_link(req, path, str(_shown_id(shown[-1], call)))]
        document["hypervisors"] = [view(one, call) | self._servers_field(one, call, with_servers) for one in shown]
        send_json(resp, document)

    def _list_hypervisors(self, resp: falcon.Response, call: Call) -> list[Hypervisor]:
        """All nodes by ID."""
        numbers = self._database.read(inventories.ids_by_node)
        answers = fan_out_within(self._settings.cell_timeout, self._registry.list_cells(), _nodes_and_agents)
        silent = {
            cell_answer.cell.uuid: cell_answer.cell.database_silent_since or time.time()
            for cell_answer in answers
            if isinstance(cell_answer, Unanswered)
        }
        self._silences.name_silent_cells(resp, call, silent)
        hypervisors: list[Hypervisor] = []
        for cell_answer in answers:
            if not isinstance(cell_answer, Answered):
                continue
            nodes, agents = cell_answer.value
            for node in nodes:
                number = numbers.get((node.host, node.node))
                if number is not None and self._registry.home_of(node.host) == cell_answer.cell.uuid:
                    hypervisors.append(Hypervisor(number, _uuid_of(node), node, agents.get(node.host)))
        return sorted(hypervisors, key=lambda one: one.number)

    def _find_hypervisor(self, resp: falcon.Response, call: Call, hypervisor_id: str) -> Hypervisor:
        for one in self._list_hypervisors(resp, call):
            if str(_shown_id(one, call)) == hypervisor_id:
                return one
        raise errors.NotFound(f"Hypervisor with ID '{hypervisor_id[:80]}' could not be found.")

    def _list_matching(self, resp: falcon.Response, call: Call, pattern: str) -> list[Hypervisor]:
        """Those whose name contains ``pattern``, without case. Raises errors.NotFound if there is none."""
        matching = [one for one in self._list_hypervisors(resp, call) if pattern.lower() in one.node.node.lower()]
        if not matching:
            raise errors.NotFound(f"No hypervisor matching '{pattern[:80]}' could be found.")
        return matching

    def _summary_document(self, one: Hypervisor, call: Call) -> dict[str, Any]:
        is_up = one.agent is not None and self._watch.agent_status(one.agent) in ("UP", "MAINTENANCE")
        return {
            "id": _shown_id(one, call),
            "hypervisor_hostname": one.node.node,
            "state": "up" if is_up else "down",
            "status": "disabled" if _is_disabled(one) else "enabled",
        }

    def _detail_document(self, one: Hypervisor, call: Call) -> dict[str, Any]:
        node = one.node
        service = one.agent.service if one.agent is not None else None
        document = self._summary_document(one, call) | {
            "hypervisor_type": node.hypervisor_type,
            "hypervisor_version": node.hypervisor_version,
            "host_ip": node.attributes.get("host_ip"),
            "service": {
                "id": service_id(service.uuid if service is not None else _uuid_of(node), call),
                "host": node.host,
                "disabled_reason": service.disabled_reason if service is not None else None,
            },
        }
        if call.has_feature(Microversion.HYPERVISOR_USE_GONE):
            is_known = bool(one.node.booted_at) and document["state"] == "up"
            return document | {"uptime": _format_uptime(one.node) if is_known else None}
        amounts = {name: getattr(node, attribute) for name, attribute in SUMS.items()}
        return (
            document
            | amounts
            | {
                "free_ram_mb": node.memory_mb - node.memory_mb_used,
                "free_disk_gb": node.disk_gb - node.disk_gb_used,
                "disk_available_least": None,
                "cpu_info": _cpu_info(node) if call.has_feature(Microversion.HYPERVISOR_CPU_OBJECT) else "",
            }
        )

    def _servers_field(self, one: Hypervisor, call: Call, with_servers: bool) -> dict[str, Any]:
        """Absent before 2.75 where there are none, as in the Compute API."""
        if not with_servers:
            return {}
        query = listing.ServerQuery(host=one.node.host, node=one.node.node, limit=self._settings.max_limit)
        servers = self._database.read(listing.list_, query)
        named = [{"uuid": server.uuid, "name": instance_name(server)} for server in servers]
        return {"servers": named} if named or call.has_feature(Microversion.QUERY_CHECKED) else {}


def _with_servers(req: falcon.Request, call: Call) -> bool:
    """Raises errors.Invalid for another word than a boolean."""
    text = req.get_param("with_servers")
    if text is None or not call.has_feature(Microversion.SERVICE_UUIDS):
        return False
    if text not in schemas.BOOLEANS:
        raise errors.Invalid(f"with_servers: {text[:40]!r} is no boolean; give true or false")
    return schemas.BOOLEANS[text]


def _position_after(every: Sequence[Hypervisor], marker: str, call: Call) -> int:
    """Raises errors.Invalid for a marker that is in no list."""
    if not call.has_feature(Microversion.SERVICE_UUIDS):
        whole_number("marker", marker)
    for index, one in enumerate(every):
        if str(_shown_id(one, call)) == marker:
            return index
    raise errors.Invalid(f"Marker {marker[:80]} could not be found.")


def _shown_id(one: Hypervisor, call: Call) -> str | int:
    return one.uuid if call.has_feature(Microversion.SERVICE_UUIDS) else one.number


def _uuid_of(node: ComputeNode) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{node.host}\n{node.node}"))


def _is_disabled(one: Hypervisor) -> bool:
    return one.agent is not None and one.agent.service.disabled


def _format_uptime(node: ComputeNode) -> str:
    """As the command ``uptime`` begins; agents report neither users nor load."""
    now = time.time()
    minutes = max(0, int(now - node.booted_at)) // 60
    days, hours = minutes // 1440, minutes // 60 % 24
    since = f"{days} day{'' if days == 1 else 's'}, " if days else ""
    return f" {time.strftime('%H:%M:%S', time.gmtime(now))} up {since}{hours:2d}:{minutes % 60:02d}"


def _cpu_info(node: ComputeNode) -> dict[str, Any]:
    """What the driver reports of the processor."""
    cpu_info = node.attributes.get("cpu_info")
    return cpu_info if isinstance(cpu_info, dict) else {}


def _nodes_and_agents(tx: CellTransaction) -> tuple[list[ComputeNode], dict[str, SeenService]]:
    agents: Iterable[SeenService] = services.list_seen(tx, AGENT_BINARY)
    return compute_nodes.list_all(tx), {agent.service.host: agent for agent in agents}
