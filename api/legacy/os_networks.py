"""``/os-networks`` and ``/os-tenant-networks``: where clients without a network service look up a network, up to 2.35."""

from __future__ import annotations

import ipaddress
from typing import Any

import falcon

from api.http import call as calls
from api.http.call import Call
from api.http.versions import answer
from api.lookup.catalog import Catalog
from objects import errors
from objects.network import Network

Document = dict[str, Any]

_OF_ADMINISTRATORS = (
    "bridge", "bridge_interface", "created_at", "deleted", "deleted_at", "dhcp_server", "dhcp_start", "enable_dhcp", "host",
    "injected", "multi_host", "priority", "project_id", "rxtx_base", "share_address", "updated_at", "vlan", "vpn_private_address",
    "vpn_public_address", "vpn_public_port",
)  # fmt: skip
"""Fields of the Compute API that administrators see, and that no network here has."""


class ProjectNetworks:
    """The networks that the caller's project may use. The methods with the suffix ``one`` are of one, by its uuid."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        answer(resp, {"networks": [_whole(network, calls.of(req)) for network in _every(self._catalog, calls.of(req))]})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, network_id: str) -> None:
        answer(resp, {"network": _whole(_find(self._catalog, calls.of(req), network_id), calls.of(req))})


class TenantNetworks:
    """The same with fewer fields."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        answer(resp, {"networks": [_brief(network) for network in _every(self._catalog, calls.of(req))]})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, network_id: str) -> None:
        answer(resp, {"network": _brief(_find(self._catalog, calls.of(req), network_id))})


def _every(catalog: Catalog, call: Call) -> list[Network]:
    return sorted(catalog.networks(call).values(), key=lambda network: network.name)


def _find(catalog: Catalog, call: Call, uuid: str) -> Network:
    found = catalog.networks(call).get(uuid)
    if found is None:
        raise errors.NotFound("Network not found")
    return found


def _brief(network: Network) -> Document:
    return {"id": network.uuid, "label": network.name, "cidr": "None"}  # the word: what the Compute API has with Neutron


def _whole(network: Network, call: Call) -> Document:
    four, six = (next((each for each in network.subnets if each.version == version), None) for version in (4, 6))
    prefix = ipaddress.ip_network(four.cidr) if four else None
    names = [*four.dns, None, None] if four else [None, None]
    document: Document = {
        "id": network.uuid,
        "label": network.name,
        "cidr": four.cidr if four else None,
        "netmask": str(prefix.netmask) if prefix else None,
        "gateway": four.gateway if four else None,
        "broadcast": str(prefix.broadcast_address) if prefix else None,
        "dns1": names[0],
        "dns2": names[1],
        "cidr_v6": six.cidr if six else None,
        "gateway_v6": six.gateway if six else None,
        "netmask_v6": str(six.prefix) if six else None,
    }
    if call.context.is_admin:
        document |= dict.fromkeys(_OF_ADMINISTRATORS) | {"mtu": network.mtu}
    return document
