"""``superconductor network`` and ``superconductor subnet``: what servers can be attached to, and the addresses that they get."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Sequence
from functools import partial

from cli.shared.base import ActionShow, Admin, AdminLister, AdminShow, Row, Table, at_least, checked_name
from db.api.servers import networks
from db.sql.connection import ApiTransaction
from objects import errors
from objects.network import Network, Subnet

Shown = tuple[tuple[str, ...], Row]

LEAST_MTU = 68
"""Bytes: the least that IPv4 needs (RFC 791)."""


class NetworkCreate(ActionShow):
    """Create a network. Servers can use it once it has a subnet.

    Example: superconductor network create blue --physical-network physnet1 --mtu 1450 --project 7f1c
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", type=checked_name)
        help_text = "the name under which hosts know what its interfaces are attached to"
        parser.add_argument("--physical-network", metavar="NAME", type=checked_name, required=True, help=help_text)
        parser.add_argument(
            "--mtu", metavar="BYTES", type=partial(at_least, LEAST_MTU), help="of its interfaces (default: the host's)"
        )
        projects = "a project that may use it; may be repeated (default: all)"
        parser.add_argument("--project", metavar="ID", type=checked_name, action="append", default=[], help=projects)

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        network = Network(
            uuid=str(uuid.uuid4()),
            name=parsed_args.name,
            physical_network=parsed_args.physical_network,
            mtu=parsed_args.mtu,
            project_ids=tuple(dict.fromkeys(parsed_args.project)),
        )
        self.deployment.api_database.write(networks.create, network)
        return _show_network(network)


class NetworkList(AdminLister):
    """List the networks.

    Example: superconductor network list -f json
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return ("UUID", "Name", "Physical Network", "MTU", "Projects", "Subnets"), [
            (n.uuid, n.name, n.physical_network, n.mtu, ", ".join(n.project_ids), ", ".join(s.cidr for s in n.subnets))
            for n in self.deployment.api_database.read(networks.list_all)
        ]


class NetworkShow(AdminShow):
    """Show one network.

    Example: superconductor network show blue
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("network", metavar="NETWORK", help="name or UUID")

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        return _show_network(self.deployment.api_database.read(networks.find_network, parsed_args.network))


class NetworkDelete(Admin):
    """Delete networks with their subnets. Refused while servers have addresses of them.

    Example: superconductor network delete blue
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("networks", metavar="NETWORK", nargs="+", help="name or UUID")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        database = self.deployment.api_database
        self.do_each(parsed_args.networks, lambda reference: database.write(_delete, reference))


class SubnetAdd(ActionShow):
    """Give a network addresses: at most one subnet of each IP version.

    Servers never get the network, broadcast and gateway addresses.
    Example: superconductor subnet add blue 10.0.0.0/24 --range 10.0.0.10-10.0.0.200 --gateway 10.0.0.1 --dns 10.0.0.2
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("network", metavar="NETWORK", help="name or UUID")
        parser.add_argument("cidr", metavar="CIDR", help="its prefix, such as 10.0.0.0/24")
        ranges = "addresses that servers may get; may be repeated (default: all)"
        parser.add_argument("--range", metavar="START-END", dest="ranges", action="append", default=[], help=ranges)
        parser.add_argument("--gateway", metavar="IP", help="its default gateway (default: none)")
        parser.add_argument("--dns", metavar="IP", action="append", default=[], help="a name server; may be repeated")

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        ranges = tuple(_parse_range(text) for text in parsed_args.ranges)
        subnet = self.deployment.api_database.write(_add_subnet, parsed_args, ranges)
        return _shown_subnet(subnet)


class SubnetList(AdminLister):
    """List the subnets of all networks, or of one, with the addresses that servers have.

    Example: superconductor subnet list --network blue
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--network", metavar="NETWORK", help="only of this network: its name or UUID")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return ("UUID", "Network", "CIDR", "Ranges", "Gateway", "DNS", "Addresses", "Used"), self.deployment.api_database.read(
            _usage_rows, parsed_args.network
        )


class SubnetDelete(Admin):
    """Delete subnets with their addresses. Refused while servers have some of them.

    Example: superconductor subnet delete 4cf0f4a0-45b5-4f4f-9c6e-5d2f8f4c9f0d
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("subnets", metavar="UUID", nargs="+")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        database = self.deployment.api_database
        self.do_each(parsed_args.subnets, lambda reference: database.write(networks.delete_subnet, reference))


def _delete(tx: ApiTransaction, reference: str) -> None:
    networks.delete(tx, networks.find_network(tx, reference).uuid)


def _add_subnet(tx: ApiTransaction, parsed_args: argparse.Namespace, ranges: Sequence[tuple[str, str]]) -> Subnet:
    return networks.add_subnet(
        tx,
        Subnet(
            uuid=str(uuid.uuid4()),
            network_id=networks.find_network(tx, parsed_args.network).uuid,
            cidr=parsed_args.cidr,
            ranges=tuple(ranges),
            gateway=parsed_args.gateway,
            dns=tuple(parsed_args.dns),
        ),
    )


def _parse_range(text: str) -> tuple[str, str]:
    first, dash, last = text.partition("-")
    if not dash:
        raise errors.Invalid(f"--range: {text[:80]!r} is no range: give START-END, such as 10.0.0.10-10.0.0.200")
    return first.strip(), last.strip()


def _usage_rows(tx: ApiTransaction, reference: str | None) -> list[Row]:
    used = networks.usage_by_subnet(tx)
    listed = networks.list_all(tx) if reference is None else [networks.find_network(tx, reference)]
    return [
        (s.uuid, n.name, s.cidr, _format_ranges(s), s.gateway, ", ".join(s.dns), used[s.uuid].size, used[s.uuid].used)
        for n in listed
        for s in n.subnets
    ]


def _format_ranges(subnet: Subnet) -> str:
    return ", ".join(f"{first}-{last}" for first, last in subnet.ranges)


def _show_network(network: Network) -> Shown:
    return ("uuid", "name", "physical_network", "mtu", "projects", "subnets"), (
        network.uuid,
        network.name,
        network.physical_network,
        network.mtu,
        ", ".join(network.project_ids),
        ", ".join(subnet.cidr for subnet in network.subnets),
    )


def _shown_subnet(subnet: Subnet) -> Shown:
    return ("uuid", "network_id", "cidr", "ranges", "gateway", "dns"), (
        subnet.uuid,
        subnet.network_id,
        subnet.cidr,
        _format_ranges(subnet),
        subnet.gateway,
        ", ".join(subnet.dns),
    )
