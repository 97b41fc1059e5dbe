"""Decide which network interfaces the servers of a request get, before the request is accepted, and show those that they have.

The accepting transaction then claims the addresses (``db/api/addresses.py``).
"""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from api.create import AskedNetwork
from objects import errors, phase
from objects.instance import Server
from objects.network import Network, PortRequest
from objects.port import Port
from objects.task import Power

Document = dict[str, Any]

_PORT_OF = uuid.UUID("5a2f5a3e-6c1c-4c6a-9c52-1f2f0b9a7a11")
"""Makes the ID of a port from its server and its MAC."""


def plan(
    asked: str | Sequence[AskedNetwork], count: int, usable: Callable[[Collection[str]], Mapping[str, Network]]
) -> tuple[PortRequest, ...]:
    """The interfaces of each of the ``count`` servers. ``usable``: the project's networks by uuid, up to date for these uuids.

    Without a list of networks it is the only one that the project may use; there may be none. Raises errors.Invalid, and
    errors.Conflict if there are several.
    """
    if asked == "none":
        return ()
    if not asked or isinstance(asked, str):
        every = list(usable(()).values())
        if len(every) > 1:
            raise errors.Conflict("Multiple possible networks found, use a Network ID to be more specific.")
        return tuple(_request(network, None, None) for network in every)
    for number, each in enumerate(asked):
        if each.port is not None:
            raise errors.Invalid(f"server.networks[{number}].port: there are no ports to name here; give the uuid of a network")
        if each.uuid is None:
            raise errors.Invalid(f"server.networks[{number}].uuid: is required")
    found = usable([each.uuid for each in asked if each.uuid is not None])
    return tuple(_named(number, each, found, count) for number, each in enumerate(asked))


def _named(number: int, asked: AskedNetwork, found: Mapping[str, Network], count: int) -> PortRequest:
    network = found.get(asked.uuid or "")
    if network is None:
        raise errors.Invalid(f"Network {asked.uuid} could not be found.")
    if asked.fixed_ip is None:
        return _request(network, None, asked.tag)
    if count > 1:
        raise errors.Invalid(f"server.networks[{number}].fixed_ip: one address cannot go to {count} servers")
    address = ipaddress.ip_address(asked.fixed_ip)
    if not any(address in ipaddress.ip_network(subnet.cidr) for subnet in network.subnets):
        raise errors.Invalid(f"Fixed IP address {address} is not a valid ip address for network {network.uuid}.")
    return _request(network, str(address), asked.tag)


def _request(network: Network, fixed_ip: str | None, tag: str | None) -> PortRequest:
    if not network.subnets:
        raise errors.Invalid(f"Network {network.uuid} requires a subnet in order to boot instances on.")
    return PortRequest(network=network, fixed_ip=fixed_ip, tag=tag)


def text(ports: Sequence[PortRequest]) -> str:
    """As the request spec says it: the uuids of the networks, or ``none``."""
    return ",".join(port.network.uuid for port in ports) or "none"


def shown(ports: Sequence[Port]) -> Document:
    """The ``addresses`` of a server: a list by the name of the network."""
    found: Document = {}
    for port in ports:
        found.setdefault(port.network, []).extend(
            {
                "version": each.version,
                "addr": each.address,
                "OS-EXT-IPS:type": "fixed",
                "OS-EXT-IPS-MAC:mac_addr": port.mac,
            }
            for each in port.addresses
        )
    return found


def brief(ports: Sequence[Port]) -> Document:
    """The same as ``GET /servers/{id}/ips`` has it."""
    return {
        network: [{"version": each["version"], "addr": each["addr"]} for each in every] for network, every in shown(ports).items()
    }


def port_id(server_uuid: str, port: Port) -> str:
    """The UUID of a port, which clients may ask for. It stays as long as the server has the interface."""
    return str(uuid.uuid5(_PORT_OF, f"{server_uuid} {port.mac}"))


def state_of(server: Server) -> str:
    """The status of its ports: they carry traffic while the guest runs."""
    return "ACTIVE" if phase.power_state_of(server) == phase.POWER_STATES[Power.ON] else "DOWN"


def fixed_ips(port: Port, network: Network | None) -> list[Document]:
    """The addresses of a port, with the subnets of its network that they are from."""
    return [{"ip_address": each.address, "subnet_id": _subnet_id(each.address, network)} for each in port.addresses]


def _subnet_id(address: str, network: Network | None) -> str | None:
    """None for a network that this process does not know yet."""
    wanted = ipaddress.ip_address(address)
    subnets = network.subnets if network is not None else ()
    return next((subnet.uuid for subnet in subnets if wanted in ipaddress.ip_network(subnet.cidr)), None)
