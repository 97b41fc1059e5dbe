"""Ports: the network interfaces of a server, with the addresses that it keeps until it is deleted or that stay with its project."""

from __future__ import annotations

import ipaddress

from objects.base import Object


class FixedAddress(Object, frozen=True, kw_only=True):
    """One address of a port. ``prefix``: the length of its subnet's prefix in bits. ``dns``: addresses of name servers."""

    address: str
    prefix: int
    gateway: str | None = None
    dns: tuple[str, ...] = ()

    @property
    def ip_version(self) -> int:
        """4 or 6."""
        return ipaddress.ip_address(self.address).version


class Port(Object, frozen=True, kw_only=True):
    """One network interface of a server.

    ``network_id``, ``network``: ID and name of its network. ``physical_network``: the name under which hosts know what the
    interface is attached to. ``addresses``: at most one of each IP version. ``mtu``: in bytes; None: the host's default.
    """

    network_id: str
    network: str
    mac: str
    physical_network: str
    addresses: tuple[FixedAddress, ...] = ()
    mtu: int | None = None
    tag: str | None = None


class ProjectPort(Object, frozen=True, kw_only=True):
    """A port that a project made itself. It keeps its MAC and its addresses, whether a server has it or none.

    ``addresses``: one at least, IPv4 first. ``server_uuid``: the server that has it; None: a boot or a server may take it.
    """

    uuid: str
    project_id: str
    network_id: str
    name: str
    description: str
    tags: tuple[str, ...]
    created_at: float
    updated_at: float
    mac: str
    addresses: tuple[str, ...]
    server_uuid: str | None = None
