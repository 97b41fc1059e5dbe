"""``/servers/{id}/os-interface``: the network interfaces of a server. They are made with it and stay until it is deleted."""

from __future__ import annotations

import falcon

from api import call as calls
from api import ports
from api.call import Call
from api.catalog import Catalog
from api.finding import Finder
from api.microversions import Since
from api.ports import Document
from api.versions import answer
from objects import errors
from objects.instance import Server
from objects.port import Port


class ServerInterfaces:
    """All of them, or with the suffix ``one`` a single one by its port ID, which is made from the server's and its MAC."""

    def __init__(self, finder: Finder, catalog: Catalog) -> None:
        self._finder = finder
        self._catalog = catalog

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        call = calls.of(req)
        server = self._finder.server(server_id, call)
        answer(resp, {"interfaceAttachments": [self._document(server, port, call) for port in self._finder.ports(server)]})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, port_id: str) -> None:
        call = calls.of(req)
        server = self._finder.server(server_id, call)
        for port in self._finder.ports(server):
            if ports.port_id(server.uuid, port) == port_id:
                answer(resp, {"interfaceAttachment": self._document(server, port, call)})
                return
        raise errors.NotFound(f"Instance {server.uuid} does not have a port with id {port_id[:80]}")

    def _document(self, server: Server, port: Port, call: Call) -> Document:
        document: Document = {
            "port_id": ports.port_id(server.uuid, port),
            "net_id": port.network_id,
            "mac_addr": port.mac,
            "port_state": ports.state_of(server),
            "fixed_ips": ports.fixed_ips(port, self._catalog.network(port.network_id)),
        }
        return document | {"tag": port.tag} if call.has(Since.INTERFACE_TAGS) else document
