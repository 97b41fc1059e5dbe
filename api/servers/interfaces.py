"""``/servers/{id}/os-interface``: the network interfaces of a server, which has them from its boot on or gets them later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.validation import VersionedValidator, read_body, validated_by
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
        call = calls.get_call(req)
        server = self._finder.get_server(server_id, call)
        opened = self._finder.find_open_operation(server)
        project_ports = self._finder.project_ports(server)
        shown = [self._attachment_document(server, port, call, opened, project_ports) for port in self._finder.list_ports(server)]
        send_json(resp, {"interfaceAttachments": shown})

    @validated_by("_validator")
    def on_post(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        """The server has the addresses at once. Its host attaches the interface after that."""
        call = calls.get_call(req)
        body = read_body(req, self._settings.max_body_size)
        self._validator.check_body(call.version, body)
        server = self._finder.get_server(server_id, call)
        port = self._plan_interface(call, server, body.get("interfaceAttachment", {}))
        try:
            operation = self._operations.accept_operation(call, server_id, OperationKind.ATTACH_INTERFACE, port=port)
        except errors.AddressInUse as error:  # a conflict with a server here, and an invalid request at a boot
            raise errors.Conflict(str(error)) from error
        attached = next((port for port in self._finder.list_ports(server) if port.mac == operation.args.mac), None)
        if attached is None:
            raise errors.Conflict(f"Instance {server.uuid} was deleted while the interface was attached")
        send_json(
            resp,
            {
                "interfaceAttachment": self._attachment_document(
                    server, attached, call, operation, self._finder.project_ports(server)
                )
            },
        )

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, port_id: str) -> None:
        call = calls.get_call(req)
        server = self._finder.get_server(server_id, call)
        opened, project_ports = self._finder.find_open_operation(server), self._finder.project_ports(server)
        send_json(
            resp,
            {
                "interfaceAttachment": self._attachment_document(
                    server, self._find_port(server, port_id, project_ports), call, opened, project_ports
                )
            },
        )

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, port_id: str) -> None:
        """The server keeps the addresses until its cell has told that the guest is without the interface."""
        call = calls.get_call(req)
        server = self._finder.get_server(server_id, call)
        port = self._find_port(server, port_id, self._finder.project_ports(server))
        self._operations.accept_operation(call, server_id, OperationKind.DETACH_INTERFACE, OperationArgs(mac=port.mac))
        resp.status = 202

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _plan_interface(self, call: Call, server: Server, attachment: dict[str, Any]) -> PortRequest:
        """The interface that the body asks for, in a network that the server's project may use."""
        if attachment.get("port_id") is not None:
            return self._of_port(call, server, attachment)
        fixed_ip = attachment["fixed_ips"][0]["ip_address"] if "fixed_ips" in attachment else None
        net_id = attachment.get("net_id")
        if fixed_ip is not None and net_id is None:
            raise errors.Invalid("interfaceAttachment.net_id: must be given with fixed_ips")
        usable = self._catalog.networks_by_uuid(call, server.project_id)
        return ports.plan_one(net_id, fixed_ip, attachment.get("tag"), usable)

    def _of_port(self, call: Call, server: Server, attachment: dict[str, Any]) -> PortRequest:
        if attachment.get("net_id") is not None or "fixed_ips" in attachment:
            raise errors.Invalid("interfaceAttachment.port_id: a port has its network and its addresses; give it alone")
        port = self._finder.project_port(attachment["port_id"], server.project_id)
        return ports.plan_port(port, attachment.get("tag"), self._catalog.networks_by_uuid(call, port.project_id))

    def _find_port(self, server: Server, port_id: str, project_ports: Mapping[str, ProjectPort]) -> Port:
        """``project_ports``: the ports of its project that the server has, by MAC."""
        matching = next(
            (port for port in self._finder.list_ports(server) if ports.port_id(server.uuid, port, project_ports) == port_id), None
        )
        if matching is None:
            raise errors.NotFound(f"Instance {server.uuid} does not have a port with id {port_id[:80]}")
        return matching

    def _attachment_document(
        self, server: Server, port: Port, call: Call, opened: Operation | None, project_ports: Mapping[str, ProjectPort]
    ) -> Document:
        """``opened``: the open operation of the server. ``project_ports``: the ports of its project that the server has, by MAC."""
        document: Document = {
            "port_id": ports.port_id(server.uuid, port, project_ports),
            "net_id": port.network_id,
            "mac_addr": port.mac,
            "port_state": ports.state_of(server, port, opened),
            "fixed_ips": ports.fixed_ips(port, self._catalog.find_network(port.network_id, call)),
        }
        return document | {"tag": port.tag} if call.has_feature(Microversion.INTERFACE_TAGS) else document
