"""``/os-hosts``, up to 2.42: the hosts of services, what one offers and its projects use, and whether it gets new servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import falcon

from api.hosts.services import Services
from api.http import call as calls
from api.http import schemas
from api.http.call import send_json
from api.http.validation import VersionedValidator, read_body, validated_by
from api.opts import ApiSettings
from cells.cell import Cell
from cells.host_service import HostChange
from cells.registry import CellRegistry
from db.api.servers import mappings
from db.api.servers.listing import ServerQuery
from db.cell import compute_nodes
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from objects.flavor import Flavor

Document = dict[str, Any]


class PhysicalHosts:
    """Lists enabled services by host, and with the suffix ``one`` shows and changes the host of an agent."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, registry: CellRegistry, services: Services) -> None:
        self._settings = settings
        self._database = database
        self._registry = registry
        self._services = services
        self._validator = VersionedValidator([((2, 1), schemas.host_change())])

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        zone = req.get_param("zone") or None
        every = self._services.list_entries(resp, calls.get_call(req))
        enabled = [service for service in every if service["status"] == "enabled" and zone in (None, service["zone"])]
        hosts = [
            {"host_name": service["host"], "service": _topic_of(service["binary"]), "zone": service["zone"]} for service in enabled
        ]
        send_json(resp, {"hosts": hosts})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, host: str) -> None:
        cell = self._cell_of(host)
        nodes = cell.with_timeout(self._settings.cell_timeout).read(compute_nodes.of_hosts, [host])
        owned = self._database.read(_flavors_on, host)
        shown = [
            _resource_entry(
                host, "(total)", sum(n.vcpus for n in nodes), sum(n.memory_mb for n in nodes), sum(n.disk_gb for n in nodes)
            ),
            _resource_entry(
                *(host, "(used_now)", sum(n.vcpus_used for n in nodes)),
                *(sum(n.memory_mb_used for n in nodes), sum(n.disk_gb_used for n in nodes)),
            ),
            _used_resources(host, "(used_max)", (flavor for flavors in owned.values() for flavor in flavors)),
            *(_used_resources(host, project, owned[project]) for project in sorted(owned)),
        ]
        send_json(resp, {"host": shown})

    def _cell_of(self, host: str) -> Cell:
        """Raises errors.NotFound."""
        try:
            return self._registry.of_host(host)
        except errors.HostNotMapped:
            raise errors.NotFound(f"Compute host {host[:80]} could not be found.") from None

    @validated_by("_validator")
    def on_put_one(self, req: falcon.Request, resp: falcon.Response, host: str) -> None:
        """Raises errors.NotOffered for the mode of maintenance: ``superconductor host drain`` empties a host."""
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check_body(call.version, document)
        self._cell_of(host)
        if "maintenance_mode" in document:
            raise errors.NotOffered("maintenance_mode: is not offered; 'superconductor host drain' empties a host.")
        enabled = document["status"].lower() == "enable"
        self._services.change_host(call, host, HostChange(disabled=not enabled))
        send_json(resp, {"host": host, "status": "enabled" if enabled else "disabled"})

    def on_get_power(self, req: falcon.Request, resp: falcon.Response, host: str) -> None:
        """As in the Compute API with every hypervisor that it still has. Raises errors.NotOffered."""
        self._cell_of(host)
        raise errors.NotOffered("Hosts are not started, shut down or rebooted here.")


def _topic_of(binary: str) -> str:
    return binary.removeprefix("nova-")


def _flavors_on(tx: ApiTransaction, host: str) -> dict[str, list[Flavor]]:
    """The flavors of the servers on a host, by project."""
    flavors_by_project: dict[str, list[Flavor]] = {}
    marker: str | None = None
    while page := mappings.list_(tx, ServerQuery(host=host, limit=1000, marker=marker, sort=(("uuid", "asc"),))):
        specs = mappings.specs_by_batch(tx, {server.batch_id for server in page})
        for server in page:
            if (spec := specs.get(server.batch_id)) is not None:
                flavors_by_project.setdefault(server.project_id, []).append(spec.flavor)
        marker = page[-1].uuid
    return flavors_by_project


def _used_resources(host: str, project: str, flavors: Iterable[Flavor]) -> Document:
    every = list(flavors)
    disk = sum(flavor.root_gb + flavor.ephemeral_gb for flavor in every)
    return _resource_entry(host, project, sum(flavor.vcpus for flavor in every), sum(flavor.memory_mb for flavor in every), disk)


def _resource_entry(host: str, project: str, vcpus: int, memory_mb: int, disk_gb: int) -> Document:
    return {"resource": {"host": host, "project": project, "cpu": vcpus, "memory_mb": memory_mb, "disk_gb": disk_gb}}
