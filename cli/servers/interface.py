"""``server add network``, ``server remove port``: network interfaces of servers that exist already, through the API."""

from __future__ import annotations

import argparse
from typing import Any

from cli.shared.http import ApiClient, HttpCommand
from cli.shared.references import network_id
from cli.shared.waiting import wait_for_end
from objects import errors


class _InterfaceChange(HttpCommand):
    """An interface of one server comes or goes."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("server", metavar="SERVER", help="id or name of the server")
        parser.add_argument("--wait", action="store_true", help="wait until its host has done it; fail if it could not")

    def await_end(self, parsed_args: argparse.Namespace, client: ApiClient, uuid: str) -> None:
        """The API has accepted it. With ``--wait``, wait for its end."""
        if not parsed_args.wait:
            return
        newest = client.get(f"servers/{uuid}/os-instance-actions")["instanceActions"][0]
        path = f"servers/{uuid}/os-instance-actions/{newest['request_id']}"
        wait_for_end(
            f"The change of the interfaces of server {uuid}",
            lambda: client.get(path)["instanceAction"]["events"][0]["finish_time"] is not None,
        )
        action = client.get(path)["instanceAction"]
        if action["message"]:
            self.status = 1
            self.warn_user(f"{parsed_args.server} ({uuid}): {action['message']}")


class ServerAddNetwork(_InterfaceChange):
    """Attach a server to a network: it gets one more interface, with an address of each pool of the network.

    Its config drive stays as it is, so its system asks for the address by DHCP, or is told by its user.

    Examples:
      superconductor server add network web-1 auto --wait
      superconductor server add network web-1 backend --fixed-ip 10.0.0.9 --tag backend
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("network", metavar="NETWORK", help="id or name of a network, or auto (the only one)")
        parser.add_argument("--fixed-ip", metavar="ADDRESS", help="the address to get (default: the one that is free for longest)")
        parser.add_argument("--tag", help="by which the config drive of a rebuilt or moved server names the interface")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.api_client(parsed_args)
        uuid = client.find_server(parsed_args.server)
        attachment: dict[str, Any] = {} if parsed_args.network == "auto" else {"net_id": network_id(client, parsed_args.network)}
        if parsed_args.fixed_ip:
            attachment["fixed_ips"] = [{"ip_address": parsed_args.fixed_ip}]
        if parsed_args.tag:
            attachment["tag"] = parsed_args.tag
        created = client.post_json(f"servers/{uuid}/os-interface", {"interfaceAttachment": attachment})["interfaceAttachment"]
        addresses = ", ".join(fixed_ip["ip_address"] for fixed_ip in created["fixed_ips"])
        print(f"{parsed_args.server}: port {created['port_id']} with {addresses}", file=self.app.stdout)
        self.await_end(parsed_args, client, uuid)


class ServerRemovePort(_InterfaceChange):
    """Detach an interface from a server. Its addresses are free once its host has said that the guest is without it.

    Example: superconductor server remove port web-1 10.0.0.9 --wait
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("port", metavar="PORT", help="id, MAC or an address of the interface")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.api_client(parsed_args)
        uuid = client.find_server(parsed_args.server)
        port = _port_id(client.get(f"servers/{uuid}/os-interface")["interfaceAttachments"], parsed_args.port)
        client.delete(f"servers/{uuid}/os-interface/{port}")
        self.await_end(parsed_args, client, uuid)


def _port_id(interfaces: list[dict[str, Any]], reference: str) -> str:
    """The id of the interface with this id, MAC or address. Raises errors.NotFound with those that there are."""
    for interface in interfaces:
        if reference.lower() in (
            interface["port_id"],
            interface["mac_addr"],
            *(fixed["ip_address"] for fixed in interface["fixed_ips"]),
        ):
            return str(interface["port_id"])
    known = ", ".join(f"{interface['port_id']} ({interface['mac_addr']})" for interface in interfaces) or "none"
    raise errors.NotFound(f"The server has no interface {reference!r}. It has: {known}.")
