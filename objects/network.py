"""Networks and their address pools, as operators define them."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Sequence

from objects import errors
from objects.base import Object

POOL_SIZE_LIMIT = 65_536
"""Addresses of one subnet at most: each is a row of the API database."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Subnet(Object, frozen=True, kw_only=True):
    """A pool of addresses of a network, which has at most one of each IP version.

    ``ranges``: (first, last) addresses that servers may get; empty: all of the prefix. ``dns``: addresses of name servers.
    """

    uuid: str
    network_id: str
    cidr: str
    ranges: tuple[tuple[str, str], ...] = ()
    gateway: str | None = None
    dns: tuple[str, ...] = ()

    @property
    def ip_version(self) -> int:
        """4 or 6."""
        return ipaddress.ip_network(self.cidr).version

    @property
    def prefix_length(self) -> int:
        """The length of its prefix in bits."""
        return ipaddress.ip_network(self.cidr).prefixlen


class Network(Object, frozen=True, kw_only=True):
    """``physical_network``: the name under which hosts know what an interface is attached to. ``mtu``: in bytes; None: the host's
    default. ``project_ids``: the projects that may use it; empty: all.
    """

    uuid: str
    name: str
    physical_network: str
    mtu: int | None = None
    project_ids: tuple[str, ...] = ()
    subnets: tuple[Subnet, ...] = ()

    def serves_project(self, project_id: str) -> bool:
        """Whether servers of the project may use it."""
        return not self.project_ids or project_id in self.project_ids


class PortRequest(Object, frozen=True, kw_only=True):
    """An interface that each server of a request gets: one address of each pool of the network.

    ``fixed_ip``: this address of the pool of its version; for a single server only. ``port_uuid``: a port of the project, whose
    addresses the interface has; for a single server only, too.
    """

    network: Network
    fixed_ip: str | None = None
    tag: str | None = None
    port_uuid: str | None = None


def checked_subnet(subnet: Subnet) -> Subnet:
    """The subnet with its addresses in their usual spelling. Raises errors.Invalid in one line that says what to give."""
    prefix = _parse_prefix(subnet.cidr)
    ranges = tuple(_parse_range(prefix, first, last) for first, last in subnet.ranges)
    _check_apart(ranges)
    gateway = _address_inside(prefix, subnet.gateway, "--gateway") if subnet.gateway else None
    size = sum(int(last) - int(first) + 1 for first, last in ranges) or prefix.num_addresses
    if size > POOL_SIZE_LIMIT:
        raise errors.Invalid(f"{prefix} has {size:,} addresses, a pool {POOL_SIZE_LIMIT:,} at most: give --range START-END")
    spelled = Subnet(
        uuid=subnet.uuid,
        network_id=subnet.network_id,
        cidr=str(prefix),
        ranges=tuple((str(first), str(last)) for first, last in ranges),
        gateway=str(gateway) if gateway is not None else None,
        dns=tuple(str(_parse_address(address, "--dns")) for address in subnet.dns),
    )
    if not usable_addresses(spelled):
        raise errors.Invalid(f"{prefix} has no address for a server: the network, broadcast and gateway addresses are never given")
    return spelled


def usable_addresses(subnet: Subnet) -> list[str]:
    """The addresses that servers may get, in order. Never those of the network itself, its broadcast and its gateway."""
    prefix = ipaddress.ip_network(subnet.cidr)
    never = {str(prefix.network_address), subnet.gateway}
    if prefix.version == 4:
        never.add(str(prefix.broadcast_address))
    whole_range = ((str(prefix.network_address), str(prefix.broadcast_address)),)
    usable: list[str] = []
    for first, last in sorted(subnet.ranges or whole_range, key=lambda address_range: int(ipaddress.ip_address(address_range[0]))):
        start, end = ipaddress.ip_address(first), ipaddress.ip_address(last)
        every = (str(type(start)(number)) for number in range(int(start), int(end) + 1))
        usable += [address for address in every if address not in never]
    return usable


def _parse_prefix(cidr: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(cidr)
    except ValueError as error:
        raise errors.Invalid(f"{cidr[:80]!r} is no prefix: {error}; give one such as 10.0.0.0/24") from None


def _parse_address(text: str, option: str) -> Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise errors.Invalid(f"{option}: {text[:80]!r} is no IP address") from None


def _address_inside(prefix: ipaddress.IPv4Network | ipaddress.IPv6Network, text: str, option: str) -> Address:
    address = _parse_address(text, option)
    if address not in prefix:
        raise errors.Invalid(f"{option}: {address} is not in {prefix}")
    return address


def _parse_range(prefix: ipaddress.IPv4Network | ipaddress.IPv6Network, first: str, last: str) -> tuple[Address, Address]:
    start, end = _address_inside(prefix, first, "--range"), _address_inside(prefix, last, "--range")
    if int(start) > int(end):
        raise errors.Invalid(f"--range: {start} comes after {end}: give START-END")
    return start, end


def _check_apart(ranges: Sequence[tuple[Address, Address]]) -> None:
    ordered = sorted(ranges, key=lambda address_range: int(address_range[0]))
    for (_, end), (start, _) in itertools.pairwise(ordered):
        if int(start) <= int(end):
            raise errors.Invalid(f"--range: two ranges overlap at {start}")
