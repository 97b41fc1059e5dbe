"""Decide which network interfaces the servers of a request get, before the request is accepted, and show those that they have.

The accepting transaction then claims the addresses (``db/api/servers/addresses.py``).
"""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from api.http.schemas import PORT_FIELDS
from api.lookup import security_groups
from api.lookup.boot_request import RequestedNetwork
from objects import errors, phase
from objects.instance import Server
from objects.network import Network, PortRequest
from objects.operation import Operation, OperationKind
from objects.port import Port, ProjectPort
from objects.task import Power

Document = dict[str, Any]

_PORT_OF = uuid.UUID("5a2f5a3e-6c1c-4c6a-9c52-1f2f0b9a7a11")
"""Makes the ID of a port from its server and its MAC."""


NO_NETWORK = "There is no network that the project of the server may use."


def plan_ports(
    requested: str | Sequence[RequestedNetwork],
    count: int,
    usable: Mapping[str, Network],
    project_ports: Mapping[str, ProjectPort],
) -> tuple[PortRequest, ...]:
    """The interfaces of each of the ``count`` servers. ``usable``: the project's networks by uuid.

    ``project_ports``: those of the requested ports that the project has. Without a list of networks it is the only one that the
    project may use; there may be none. Raises errors.Invalid, and errors.Conflict if there are several.
    """
    if requested == "none":
        return ()
    if not requested or isinstance(requested, str):
        if len(usable) > 1:
            raise errors.Conflict("Multiple possible networks found, use a Network ID to be more specific.")
        return tuple(_port_request(network, None, None) for network in usable.values())
    _check_asked(requested, count)
    return tuple(
        _request_on_network(number, request, usable, count)
        if request.port is None
        else _of_port(request.port, request.tag, project_ports, usable)
        for number, request in enumerate(requested)
    )


def _check_asked(requested: Sequence[RequestedNetwork], count: int) -> None:
    """Raises errors.Invalid for what no request can ask."""
    ports = [request.port for request in requested if request.port is not None]
    for number, request in enumerate(requested):
        field = f"server.networks[{number}]"
        if request.port is None:
            if request.uuid is None:
                raise errors.Invalid(f"{field}.uuid: is required")
        elif request.fixed_ip is not None:
            raise errors.Invalid(f"{field}.fixed_ip: a port has its addresses; give either this or the port")
        elif count > 1:
            raise errors.Invalid(f"{field}.port: one port cannot go to {count} servers")
        elif ports.count(request.port) > 1:
            raise errors.Invalid(f"{field}.port: port {request.port} is named twice")


def _of_port(
    port_uuid: str, tag: str | None, project_ports: Mapping[str, ProjectPort], networks: Mapping[str, Network]
) -> PortRequest:
    """Raises errors.Invalid."""
    port = project_ports.get(port_uuid)
    if port is None:
        raise errors.Invalid(f"Port {port_uuid} could not be found.")
    return plan_port(port, tag, networks)


def plan_port(port: ProjectPort, tag: str | None, networks: Mapping[str, Network]) -> PortRequest:
    """The interface that a server has with this port. Raises errors.Invalid if its network is not among ``networks``."""
    network = networks.get(port.network_id)
    if network is None:
        raise errors.Invalid(f"Network {port.network_id} of port {port.uuid} could not be found.")
    return PortRequest(network=network, tag=tag, port_uuid=port.uuid)


def plan_one(net_id: str | None, fixed_ip: str | None, tag: str | None, usable: Mapping[str, Network]) -> PortRequest:
    """One more interface of a server: in the network ``net_id``, or in the only one that is ``usable``.

    Raises errors.NotFound for an unknown network, and errors.Invalid.
    """
    if net_id is None and len(usable) != 1:
        problem = "Multiple possible networks found, use a Network ID to be more specific." if usable else NO_NETWORK
        raise errors.Invalid(problem)
    network = usable.get(net_id) if net_id is not None else next(iter(usable.values()))
    if network is None:
        raise errors.NotFound(f"Network {net_id} could not be found.")
    return _port_request(network, _check_address(network, fixed_ip), tag)


def _request_on_network(number: int, request: RequestedNetwork, usable: Mapping[str, Network], count: int) -> PortRequest:
    network = usable.get(request.uuid or "")
    if network is None:
        raise errors.Invalid(f"Network {request.uuid} could not be found.")
    if request.fixed_ip is None:
        return _port_request(network, None, request.tag)
    if count > 1:
        raise errors.Invalid(f"server.networks[{number}].fixed_ip: one address cannot go to {count} servers")
    return _port_request(network, _check_address(network, request.fixed_ip), request.tag)


def _check_address(network: Network, fixed_ip: str | None) -> str | None:
    """The address in its usual spelling. Raises errors.Invalid for one that is in no subnet of the network."""
    if fixed_ip is None:
        return None
    address = ipaddress.ip_address(fixed_ip)
    if not any(address in ipaddress.ip_network(subnet.cidr) for subnet in network.subnets):
        raise errors.Invalid(f"Fixed IP address {address} is not a valid ip address for network {network.uuid}.")
    return str(address)


def _port_request(network: Network, fixed_ip: str | None, tag: str | None) -> PortRequest:
    if not network.subnets:
        raise errors.Invalid(f"Network {network.uuid} requires a subnet in order to boot instances on.")
    return PortRequest(network=network, fixed_ip=fixed_ip, tag=tag)


def addresses_entry(ports: Sequence[Port]) -> Document:
    """The ``addresses`` of a server: a list by the name of the network."""
    by_network: Document = {}
    for port in ports:
        by_network.setdefault(port.network, []).extend(
            {
                "version": address.ip_version,
                "addr": address.address,
                "OS-EXT-IPS:type": "fixed",
                "OS-EXT-IPS-MAC:mac_addr": port.mac,
            }
            for address in port.addresses
        )
    return by_network


def brief_addresses(ports: Sequence[Port]) -> Document:
    """The same as ``GET /servers/{id}/ips`` has it."""
    return {
        network: [{"version": entry["version"], "addr": entry["addr"]} for entry in every]
        for network, every in addresses_entry(ports).items()
    }


def port_id(server_uuid: str, port: Port, project_ports: Mapping[str, ProjectPort] = MappingProxyType({})) -> str:
    """The UUID of a port, which clients may ask for. It stays as long as the server has the interface.

    ``project_ports``: the ports of projects that the server has, by MAC.
    """
    return project_ports[port.mac].uuid if port.mac in project_ports else str(uuid.uuid5(_PORT_OF, f"{server_uuid} {port.mac}"))


def state_of(server: Server, port: Port, opened: Operation | None) -> str:
    """The status of a port: it carries traffic while the guest runs. ``opened``: the open operation of the server."""
    if opened is not None and opened.kind is OperationKind.ATTACH_INTERFACE and opened.args.mac == port.mac:
        return "BUILD"
    return "ACTIVE" if phase.power_state_of(server) == phase.POWER_STATES[Power.ON] else "DOWN"


def fixed_ips(port: Port, network: Network | None) -> list[Document]:
    """The addresses of a port, with the subnets of its network that they are from."""
    return in_subnets([address.address for address in port.addresses], network)


def in_subnets(addresses: Sequence[str], network: Network | None) -> list[Document]:
    """The same of these addresses."""
    return [{"ip_address": address, "subnet_id": _subnet_id(address, network)} for address in addresses]


def _subnet_id(address: str, network: Network | None) -> str | None:
    """None for a network that this process does not know yet."""
    parsed = ipaddress.ip_address(address)
    subnets = network.subnets if network is not None else ()
    return next((subnet.uuid for subnet in subnets if parsed in ipaddress.ip_network(subnet.cidr)), None)


# -- a port that a project makes ---------------------------------------------------------------------------------------------------


def refuse_unserved(body: Mapping[str, Any], project_id: str) -> None:
    """Raise errors.Invalid for values of a port's fields that it will not have, instead of ignoring them."""
    for field, (values, reason) in PORT_FIELDS.items():
        if body.get(field) is not None and body[field] not in values:
            raise errors.Invalid(f"port.{field}: {reason}")
    groups = body.get("security_groups")
    if groups is not None and groups != [security_groups.id_of(project_id)]:
        raise errors.Invalid(
            f"port.security_groups: each port has the group {security_groups.id_of(project_id)} ('default'), and no other one"
        )


def wanted_addresses(network: Network, requested: Sequence[Mapping[str, str]] | None) -> dict[str, str | None]:
    """By subnet, which address a new port gets; None: any. ``requested``: None for all subnets. Raises errors.Invalid."""
    if requested is None:
        requested = [{"subnet_id": subnet.uuid} for subnet in network.subnets]
    by_subnet: dict[str, str | None] = {}
    for number, entry in enumerate(requested):
        field = f"port.fixed_ips[{number}]"
        address = _check_address(network, entry.get("ip_address"))
        subnet = entry.get("subnet_id") or (_subnet_id(address, network) if address is not None else None)
        if subnet is None:
            raise errors.Invalid(f"{field}: give subnet_id, ip_address or both")
        if subnet not in [known.uuid for known in network.subnets]:
            raise errors.Invalid(f"{field}.subnet_id: network {network.uuid} has no subnet {subnet[:80]}")
        if address is not None and _subnet_id(address, network) != subnet:
            raise errors.Invalid(f"{field}.ip_address: {address} is not in subnet {subnet}")
        if subnet in by_subnet:
            raise errors.Invalid(f"{field}: a port has one address of a subnet")
        by_subnet[subnet] = address
    if not by_subnet:
        advice = "leave this out for one of each subnet" if network.subnets else "its network has no subnet yet"
        raise errors.Invalid(f"port.fixed_ips: a port needs an address; {advice}")
    return by_subnet
