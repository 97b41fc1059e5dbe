"""``server set|unset|lock|unlock``: changes of servers that need no host, through the API."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from cli.shared.base import checked_name, key_value, safe_text
from cli.shared.http import HttpCommand


class ServerSet(HttpCommand):
    """Change a server: properties and tags are added to those that it has.

    Example: superconductor server set web-1 --name web-main --property role=web --tag blue
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("server", metavar="SERVER", help="id or name of the server")
        parser.add_argument("--name", metavar="NAME", type=checked_name, help="its new name")
        parser.add_argument("--description", type=safe_text, help="its new description")
        parser.add_argument(
            "--property", action="append", default=[], type=key_value, metavar="KEY=VALUE", help="metadata; may be repeated"
        )
        parser.add_argument("--tag", action="append", default=[], type=safe_text, help="tag; may be repeated")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.api_client(parsed_args)
        path = f"servers/{client.find_server(parsed_args.server)}"
        fields: dict[str, Any] = {"name": parsed_args.name, "description": parsed_args.description}
        if changed := {field: value for field, value in fields.items() if value is not None}:
            client.put_json(path, {"server": changed})
        if parsed_args.property:
            client.post_json(f"{path}/metadata", {"metadata": dict(parsed_args.property)})
        for tag in parsed_args.tag:
            client.put_json(f"{path}/tags/{_in_path(tag)}")


class ServerUnset(HttpCommand):
    """Remove properties, tags or the description of a server.

    Example: superconductor server unset web-1 --property role --tag blue --description
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("server", metavar="SERVER", help="id or name of the server")
        parser.add_argument("--description", action="store_true", help="remove the description")
        parser.add_argument(
            "--property", action="append", default=[], type=safe_text, metavar="KEY", help="key of metadata; may be repeated"
        )
        parser.add_argument("--tag", action="append", default=[], type=safe_text, help="tag; may be repeated")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.api_client(parsed_args)
        path = f"servers/{client.find_server(parsed_args.server)}"
        if parsed_args.description:
            client.put_json(path, {"server": {"description": None}})
        paths = [f"{path}/metadata/{_in_path(key)}" for key in parsed_args.property]
        paths += [f"{path}/tags/{_in_path(tag)}" for tag in parsed_args.tag]
        self.do_each(paths, client.delete)


class ServerLock(HttpCommand):
    """Lock servers: then only administrators change and delete them.

    Example: superconductor server lock web-1 web-2
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("servers", nargs="+", metavar="SERVER", help="id or name")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        _send_action(self, parsed_args, "lock")


class ServerUnlock(HttpCommand):
    """Unlock servers.

    Example: superconductor server unlock web-1 web-2
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("servers", nargs="+", metavar="SERVER", help="id or name")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        _send_action(self, parsed_args, "unlock")


def _send_action(command: HttpCommand, parsed_args: argparse.Namespace, action: str) -> None:
    """Send an action without arguments to each server."""
    client = command.api_client(parsed_args)
    command.do_each(
        parsed_args.servers, lambda reference: client.post_json(f"servers/{client.find_server(reference)}/action", {action: None})
    )


def _in_path(text: str) -> str:
    return quote(text, safe="")
