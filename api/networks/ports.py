"""``/network/v2.0/ports``: the ports of servers, and those that a project makes before it has a server for them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import falcon

from api.http import call as calls
from api.http import policies, schemas
from api.http.call import Call, send_json
from api.http.validation import Validator, is_uuid, read_body, validated_by
from api.lookup import ports, security_groups, server_view
from api.lookup.catalog import Catalog
from api.lookup.ports import Document
from api.networks.answers import answer_all, answer_one, resource_not_found
from api.opts import ApiSettings
from db.api.operations import operations
from db.api.servers import addresses, mappings
from db.api.servers import ports as rows
from db.sql.engine import ApiDatabase
from objects import errors
from objects.instance import Server
from objects.network import Network
from objects.port import Port, ProjectPort

_SERVERS_PAGE = 1000
"""Servers whose ports one statement reads."""


class NetworkPorts:
    """All ports, or with a suffix a single one or its tags. Only the ports that a project has made can be changed or deleted."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, catalog: Catalog) -> None:
        self._settings = settings
        self._database = database
        self._catalog = catalog
        self._new = Validator(schemas.NEW_PORT)
        self._changes = Validator(schemas.PORT_CHANGES)
        self._tags = Validator(schemas.PORT_TAGS)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        project_ports = self._database.read(rows.list_, call.project_scope)
        devices = req.get_param_as_list("device_id") or ()
        answer_all(req, resp, "ports", self._port_documents(call, project_ports, devices), self._settings.max_limit)

    @validated_by("_new")
    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """The port has its addresses at once."""
        call = calls.get_call(req)
        body = read_body(req, self._settings.max_body_size)
        self._new.check_body(body)
        port_body = body["port"]
        project = port_body.get("project_id") or port_body.get("tenant_id") or call.context.project_id
        if not call.is_allowed(policies.PORT_CREATE, project):
            raise errors.Forbidden("port.project_id: policy does not let you make ports of other projects")
        ports.refuse_unserved(port_body, project)
        network = self._catalog.networks_by_uuid(call, project).get(port_body["network_id"])
        if network is None:
            raise resource_not_found("network", port_body["network_id"])
        new = rows.NewPort(
            uuid=str(uuid.uuid4()),
            project_id=project,
            network=network,
            wanted=ports.wanted_addresses(network, port_body.get("fixed_ips")),
            name=port_body.get("name") or "",
            description=port_body.get("description") or "",
            tags=tuple(port_body.get("tags") or ()),
        )
        try:
            self._database.write(rows.create, new, self._settings.ports, self._database.current_time())
        except errors.AddressInUse as error:
            raise errors.Conflict(str(error)) from error
        send_json(resp, {"port": self._project_port(self._database.read(rows.get, new.uuid), call)}, 201)

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, port_id: str) -> None:
        call = calls.get_call(req)
        project_port = self._find_project_port(call, port_id)
        if project_port is None:
            documents = self._port_documents(call, [])
        elif project_port.server_uuid is None:
            documents = [self._project_port(project_port, call)]
        else:
            documents = self._port_documents(call, [project_port], [project_port.server_uuid])
        answer_one(req, resp, "port", documents, port_id)

    @validated_by("_changes")
    def on_put_one(self, req: falcon.Request, resp: falcon.Response, port_id: str) -> None:
        body = read_body(req, self._settings.max_body_size)
        self._changes.check_body(body)
        port = self._changeable_port(calls.get_call(req), port_id)
        port_body = body["port"]
        ports.refuse_unserved(port_body, port.project_id)
        changes = {name: port_body[name] or "" for name in ("name", "description") if name in port_body}
        self._database.write(rows.update_port, port.uuid, changes, self._database.current_time())
        self.on_get_one(req, resp, port_id)

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, port_id: str) -> None:
        port = self._changeable_port(calls.get_call(req), port_id)
        self._database.write(rows.delete, port.uuid, self._database.current_time())
        resp.status = 204

    def on_get_tags(self, req: falcon.Request, resp: falcon.Response, port_id: str) -> None:
        call = calls.get_call(req)
        project_port = self._find_project_port(call, port_id)
        if project_port is None and not self._is_of_a_server(call, port_id):
            raise resource_not_found("port", port_id)
        send_json(resp, {"tags": [] if project_port is None else list(project_port.tags)})

    @validated_by("_tags")
    def on_put_tags(self, req: falcon.Request, resp: falcon.Response, port_id: str) -> None:
        """Replace all tags."""
        body = read_body(req, self._settings.max_body_size)
        self._tags.check_body(body)
        self._database.write(
            rows.set_tags, self._changeable_port(calls.get_call(req), port_id).uuid, body["tags"], self._database.current_time()
        )
        self.on_get_tags(req, resp, port_id)

    def on_delete_tags(self, req: falcon.Request, resp: falcon.Response, port_id: str) -> None:
        self._database.write(
            rows.set_tags, self._changeable_port(calls.get_call(req), port_id).uuid, (), self._database.current_time()
        )
        resp.status = 204

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _find_project_port(self, call: Call, port_id: str) -> ProjectPort | None:
        """The port that a project has made, if the caller may see it."""
        port = self._database.read(rows.by_uuid, [port_id]).get(port_id) if is_uuid(port_id) else None
        return port if port is not None and call.project_scope in (None, port.project_id) else None

    def _changeable_port(self, call: Call, port_id: str) -> ProjectPort:
        """The same, to change it. Raises errors.NotFound, and errors.Conflict for a port that was made with its server."""
        port = self._find_project_port(call, port_id)
        if port is not None:
            return port
        if self._is_of_a_server(call, port_id):
            raise errors.Conflict(f"Port {port_id} was made with its server, and goes with it: use os-interface.")
        raise resource_not_found("port", port_id)

    def _is_of_a_server(self, call: Call, port_id: str) -> bool:
        return any(document["id"] == port_id for document in self._port_documents(call, []))

    def _port_documents(self, call: Call, project_ports: Iterable[ProjectPort], devices: Sequence[str] = ()) -> list[Document]:
        """The ports of the caller's servers, or of those with these uuids, and of ``project_ports`` those that no such server
        has.
        """
        unmatched = {port.mac: port for port in project_ports}
        documents: list[Document] = []
        for servers in _server_pages(self._database.read, call, devices):
            uuids = [server.uuid for server in servers]
            ports_by_server = self._database.read(addresses.ports_of, uuids)
            opened = self._database.read(operations.open_for, uuids)
            for server in servers:
                for port in ports_by_server.get(server.uuid, ()):
                    network = self._catalog.find_network(port.network_id, call)
                    document = _of_server(server, port, network) | {
                        "status": ports.state_of(server, port, opened.get(server.uuid)),
                    }
                    project_port = unmatched.pop(port.mac, None)
                    documents.append(document if project_port is None else document | _what_projects_set(project_port))
        return documents + [self._project_port(port, call) for port in unmatched.values()]

    def _project_port(self, port: ProjectPort, call: Call) -> Document:
        """``device_id``: also of a server that is deleted, until its last guest is gone."""
        return {
            **_of_any(port.project_id, port.network_id, port.mac),
            "device_id": port.server_uuid or "",
            "device_owner": "",
            "fixed_ips": ports.in_subnets(port.addresses, self._catalog.find_network(port.network_id, call)),
            "status": "DOWN",
            **_what_projects_set(port),
        }


def _server_pages(read: Callable[..., Any], call: Call, uuids: Sequence[str]) -> Iterable[list[Server]]:
    marker: str | None = None
    while True:
        query = mappings.ServerQuery(
            project_id=call.project_scope, uuids=tuple(uuids), limit=_SERVERS_PAGE, marker=marker, sort=(("uuid", "asc"),)
        )
        page: list[Server] = read(mappings.list_, query)
        yield page
        if len(page) < _SERVERS_PAGE:
            return
        marker = page[-1].uuid


def _of_server(server: Server, port: Port, network: Network | None) -> Document:
    created = server_view.format_iso(server.created_at)
    return {
        **_of_any(server.project_id, port.network_id, port.mac),
        "id": ports.port_id(server.uuid, port),
        "name": "",
        "description": "",
        "device_id": server.uuid,
        "device_owner": f"compute:{server.availability_zone or ''}",
        "fixed_ips": ports.fixed_ips(port, network),
        "tags": [],
        "created_at": created,
        "updated_at": created,
    }


def _of_any(project_id: str, network_id: str, mac: str) -> Document:
    return {
        "project_id": project_id,
        "tenant_id": project_id,
        "network_id": network_id,
        "mac_address": mac,
        "admin_state_up": True,
        "port_security_enabled": False,
        "security_groups": [security_groups.id_of(project_id)],
        "binding:vnic_type": "normal",
    }


def _what_projects_set(port: ProjectPort) -> Document:
    return {
        "id": port.uuid,
        "name": port.name,
        "description": port.description,
        "tags": list(port.tags),
        "created_at": server_view.format_iso(port.created_at),
        "updated_at": server_view.format_iso(port.updated_at),
    }
