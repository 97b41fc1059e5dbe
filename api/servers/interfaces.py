"""``/servers/{id}/os-interface``: the network interfaces of a server, which has them from its boot on or gets them later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.call import Call
from api.http.microversions import Since
from api.http.validation import VersionedValidator, read_body, validated_by
from api.http.versions import answer
from api.lookup import ports
from api.lookup.catalog import Catalog
from api.lookup.ports import Document
from api.lookup.server_lookup import Finder
from api.opts import ApiSettings
from api.servers.operate import Operations
from objects import errors
from objects.instance import Server
from objects.network import PortRequest
from objects.operation import Operation, OperationArgs, OperationKind
from objects.port import Port, ProjectPort


class ServerInterfaces:
    """All of them, or with the suffix ``one`` a single one by its port ID, which is made from the server's and its MAC."""

    def __init__(self, settings: ApiSettings, finder: Finder, catalog: Catalog, operations: Operations) -> None:
        self._settings = settings
        self._finder = finder
        self._catalog = catalog
        self._operations = operations
        self._validator = VersionedValidator(schemas.INTERFACE_ATTACHMENT)

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        call = calls.of(req)
        server = self._finder.server(server_id, call)
        opened = self._finder.opened(server)
        made = self._finder.project_ports(server)
        shown = [self._document(server, port, call, opened, made) for port in self._finder.ports(server)]
        answer(resp, {"interfaceAttachments": shown})

    @validated_by("_validator")
    def on_post(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        """The server has the addresses at once. Its host attaches the interface after that."""
        call = calls.of(req)
        body = read_body(req, self._settings.max_body_size)
        self._validator.check(call.version, body)
        server = self._finder.server(server_id, call)
        port = self._planned(call, server, body.get("interfaceAttachment", {}))
        try:
            operation = self._operations.accept(call, server_id, OperationKind.ATTACH_INTERFACE, port=port)
        except errors.AddressInUse as error:  # a conflict with a server here, and an invalid request at a boot
            raise errors.Conflict(str(error)) from error
        attached = next((port for port in self._finder.ports(server) if port.mac == operation.args.mac), None)
        if attached is None:
            raise errors.Conflict(f"Instance {server.uuid} was deleted while the interface was attached")
        answer(resp, {"interfaceAttachment": self._document(server, attached, call, operation, self._finder.project_ports(server))})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, port_id: str) -> None:
        call = calls.of(req)
        server = self._finder.server(server_id, call)
        opened, made = self._finder.opened(server), self._finder.project_ports(server)
        answer(resp, {"interfaceAttachment": self._document(server, self._port(server, port_id, made), call, opened, made)})

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, port_id: str) -> None:
        """The server keeps the addresses until its cell has told that the guest is without the interface."""
        call = calls.of(req)
        server = self._finder.server(server_id, call)
        port = self._port(server, port_id, self._finder.project_ports(server))
        self._operations.accept(call, server_id, OperationKind.DETACH_INTERFACE, OperationArgs(mac=port.mac))
        resp.status = 202

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _planned(self, call: Call, server: Server, asked: dict[str, Any]) -> PortRequest:
        """The interface that the body asks for, in a network that the server's project may use."""
        if asked.get("port_id") is not None:
            return self._of_port(call, server, asked)
        fixed_ip = asked["fixed_ips"][0]["ip_address"] if "fixed_ips" in asked else None
        net_id = asked.get("net_id")
        if fixed_ip is not None and net_id is None:
            raise errors.Invalid("interfaceAttachment.net_id: must be given with fixed_ips")
        usable = self._catalog.networks(call, server.project_id)
        return ports.plan_one(net_id, fixed_ip, asked.get("tag"), usable)

    def _of_port(self, call: Call, server: Server, asked: dict[str, Any]) -> PortRequest:
        if asked.get("net_id") is not None or "fixed_ips" in asked:
            raise errors.Invalid("interfaceAttachment.port_id: a port has its network and its addresses; give it alone")
        port = self._finder.project_port(asked["port_id"], server.project_id)
        return ports.plan_port(port, asked.get("tag"), self._catalog.networks(call, port.project_id))

    def _port(self, server: Server, port_id: str, made: Mapping[str, ProjectPort]) -> Port:
        """``made``: the ports of its project that the server has, by MAC."""
        found = next((port for port in self._finder.ports(server) if ports.port_id(server.uuid, port, made) == port_id), None)
        if found is None:
            raise errors.NotFound(f"Instance {server.uuid} does not have a port with id {port_id[:80]}")
        return found

    def _document(
        self, server: Server, port: Port, call: Call, opened: Operation | None, made: Mapping[str, ProjectPort]
    ) -> Document:
        """``opened``: the open operation of the server. ``made``: the ports of its project that the server has, by MAC."""
        document: Document = {
            "port_id": ports.port_id(server.uuid, port, made),
            "net_id": port.network_id,
            "mac_addr": port.mac,
            "port_state": ports.state_of(server, port, opened),
            "fixed_ips": ports.fixed_ips(port, self._catalog.network(port.network_id, call)),
        }
        return document | {"tag": port.tag} if call.has(Since.INTERFACE_TAGS) else document
