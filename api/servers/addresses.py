"""``/servers/{id}/ips``: the addresses of a server."""

from __future__ import annotations

import falcon

from api.http import call as calls
from api.http.call import send_json
from api.lookup import ports
from api.lookup.server_lookup import Finder
from objects import errors


class ServerAddresses:
    """By network, or with the suffix ``one`` those of one network, which is named as in the list."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        send_json(resp, {"addresses": self._read_addresses(req, server_id)})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, network: str) -> None:
        addresses_by_network = self._read_addresses(req, server_id)
        if network not in addresses_by_network:
            raise errors.NotFound(f"Network not found: server {server_id} has no address in {network[:80]!r}.")
        send_json(resp, {network: addresses_by_network[network]})

    def _read_addresses(self, req: falcon.Request, server_id: str) -> ports.Document:
        return ports.brief_addresses(self._finder.list_ports(self._finder.get_server(server_id, calls.get_call(req))))
