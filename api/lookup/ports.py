"""Decide which network interfaces the servers of a request get, before the request is accepted, and show those that they have.

The accepting transaction then claims the addresses (``db/api/servers/addresses.py``).
"""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
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


def plan(
    asked: str | Sequence[RequestedNetwork],
    count: int,
    usable: Mapping[str, Network],
    made: Callable[[Collection[str]], Mapping[str, ProjectPort]],
) -> tuple[PortRequest, ...]:
    """The interfaces of each of the ``count`` servers. ``usable``: the project's networks by uuid.

    ``made``: those of these ports that the project has. Without a list of networks it is the only one that the project may use;
    there may be none. Raises errors.Invalid, and errors.Conflict if there are several.
    """
    if asked == "none":
        return ()
    if not asked or isinstance(asked, str):
        if len(usable) > 1:
            raise errors.Conflict("Multiple possible networks found, use a Network ID to be more specific.")
        return tuple(_request(network, None, None) for network in usable.values())
    _check_asked(asked, count)
    wanted = [each.port for each in asked if each.port is not None]
    found = made(wanted) if wanted else {}
    return tuple(
        _named(number, each, usable, count) if each.port is None else _of_port(each.port, each.tag, found, usable)
        for number, each in enumerate(asked)
    )


def _check_asked(asked: Sequence[RequestedNetwork], count: int) -> None:
    """Raises errors.Invalid for what no request can ask."""
    ports = [each.port for each in asked if each.port is not None]
    for number, each in enumerate(asked):
        field = f"server.networks[{number}]"
        if each.port is None:
            if each.uuid is None:
                raise errors.Invalid(f"{field}.uuid: is required")
        elif each.fixed_ip is not None:
            raise errors.Invalid(f"{field}.fixed_ip: a port has its addresses; give either this or the port")
        elif count > 1:
            raise errors.Invalid(f"{field}.port: one port cannot go to {count} servers")
        elif ports.count(each.port) > 1:
            raise errors.Invalid(f"{field}.port: port {each.port} is named twice")


def _of_port(wanted: str, tag: str | None, found: Mapping[str, ProjectPort], networks: Mapping[str, Network]) -> PortRequest:
    """Raises errors.Invalid."""
    port = found.get(wanted)
    if port is None:
        raise errors.Invalid(f"Port {wanted} could not be found.")
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
    return _request(network, _inside(network, fixed_ip), tag)


def _named(number: int, asked: RequestedNetwork, found: Mapping[str, Network], count: int) -> PortRequest:
    network = found.get(asked.uuid or "")
    if network is None:
        raise errors.Invalid(f"Network {asked.uuid} could not be found.")
    if asked.fixed_ip is None:
        return _request(network, None, asked.tag)
    if count > 1:
        raise errors.Invalid(f"server.networks[{number}].fixed_ip: one address cannot go to {count} servers")
    return _request(network, _inside(network, asked.fixed_ip), asked.tag)


def _inside(network: Network, fixed_ip: str | None) -> str | None:
    """The address in its usual spelling. Raises errors.Invalid for one that is in no subnet of the network."""
    if fixed_ip is None:
        return None
    address = ipaddress.ip_address(fixed_ip)
    if not any(address in ipaddress.ip_network(subnet.cidr) for subnet in network.subnets):
        raise errors.Invalid(f"Fixed IP address {address} is not a valid ip address for network {network.uuid}.")
    return str(address)


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


def port_id(server_uuid: str, port: Port, made: Mapping[str, ProjectPort] = MappingProxyType({})) -> str:
    """The UUID of a port, which clients may ask for. It stays as long as the server has the interface.

    ``made``: the ports of projects that the server has, by MAC.
    """
    return made[port.mac].uuid if port.mac in made else str(uuid.uuid5(_PORT_OF, f"{server_uuid} {port.mac}"))


def state_of(server: Server, port: Port, opened: Operation | None) -> str:
    """The status of a port: it carries traffic while the guest runs. ``opened``: the open operation of the server."""
    if opened is not None and opened.kind is OperationKind.ATTACH_INTERFACE and opened.args.mac == port.mac:
        return "BUILD"
    return "ACTIVE" if phase.power_state_of(server) == phase.POWER_STATES[Power.ON] else "DOWN"


def fixed_ips(port: Port, network: Network | None) -> list[Document]:
    """The addresses of a port, with the subnets of its network that they are from."""
    return in_subnets([each.address for each in port.addresses], network)


def in_subnets(addresses: Sequence[str], network: Network | None) -> list[Document]:
    """The same of these addresses."""
    return [{"ip_address": each, "subnet_id": _subnet_id(each, network)} for each in addresses]


def _subnet_id(address: str, network: Network | None) -> str | None:
    """None for a network that this process does not know yet."""
    wanted = ipaddress.ip_address(address)
    subnets = network.subnets if network is not None else ()
    return next((subnet.uuid for subnet in subnets if wanted in ipaddress.ip_network(subnet.cidr)), None)


# -- a port that a project makes ---------------------------------------------------------------------------------------------------


def refuse_unserved(asked: Mapping[str, Any], project_id: str) -> None:
    """Raise errors.Invalid for values of a port's fields that it will not have, instead of ignoring them."""
    for field, (values, reason) in PORT_FIELDS.items():
        if asked.get(field) is not None and asked[field] not in values:
            raise errors.Invalid(f"port.{field}: {reason}")
    groups = asked.get("security_groups")
    if groups is not None and groups != [security_groups.id_of(project_id)]:
        raise errors.Invalid(
            f"port.security_groups: each port has the group {security_groups.id_of(project_id)} ('default'), and no other one"
        )


def wanted_addresses(network: Network, asked: Sequence[Mapping[str, str]] | None) -> dict[str, str | None]:
    """By subnet, which address a new port gets; None: any. ``asked``: None for all subnets. Raises errors.Invalid."""
    if asked is None:
        asked = [{"subnet_id": subnet.uuid} for subnet in network.subnets]
    wanted: dict[str, str | None] = {}
    for number, each in enumerate(asked):
        field = f"port.fixed_ips[{number}]"
        address = _inside(network, each.get("ip_address"))
        subnet = each.get("subnet_id") or (_subnet_id(address, network) if address is not None else None)
        if subnet is None:
            raise errors.Invalid(f"{field}: give subnet_id, ip_address or both")
        if subnet not in [own.uuid for own in network.subnets]:
            raise errors.Invalid(f"{field}.subnet_id: network {network.uuid} has no subnet {subnet[:80]}")
        if address is not None and _subnet_id(address, network) != subnet:
            raise errors.Invalid(f"{field}.ip_address: {address} is not in subnet {subnet}")
        if subnet in wanted:
            raise errors.Invalid(f"{field}: a port has one address of a subnet")
        wanted[subnet] = address
    if not wanted:
        advice = "leave this out for one of each subnet" if network.subnets else "its network has no subnet yet"
        raise errors.Invalid(f"port.fixed_ips: a port needs an address; {advice}")
    return wanted
