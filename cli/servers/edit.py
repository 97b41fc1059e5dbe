"""``server set|unset|lock|unlock``: changes of servers that need no host, through the API."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from cli.shared.base import key_value, name, words
from cli.shared.http import HttpCommand


class ServerSet(HttpCommand):
    """Change a server: properties and tags are added to those that it has.

    Example: superconductor server set web-1 --name web-main --property role=web --tag blue
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("server", metavar="SERVER", help="id or name of the server")
        parser.add_argument("--name", metavar="NAME", type=name, help="its new name")
        parser.add_argument("--description", type=words, help="its new description")
        parser.add_argument(
            "--property", action="append", default=[], type=key_value, metavar="KEY=VALUE", help="metadata; may be repeated"
        )
        parser.add_argument("--tag", action="append", default=[], type=words, help="tag; may be repeated")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.client(parsed_args)
        path = f"servers/{client.find_server(parsed_args.server)}"
        given: dict[str, Any] = {"name": parsed_args.name, "description": parsed_args.description}
        if changed := {field: value for field, value in given.items() if value is not None}:
            client.put(path, {"server": changed})
        if parsed_args.property:
            client.post(f"{path}/metadata", {"metadata": dict(parsed_args.property)})
        for tag in parsed_args.tag:
            client.put(f"{path}/tags/{_in_path(tag)}")


class ServerUnset(HttpCommand):
    """Remove properties, tags or the description of a server.

    Example: superconductor server unset web-1 --property role --tag blue --description
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("server", metavar="SERVER", help="id or name of the server")
        parser.add_argument("--description", action="store_true", help="remove the description")
        parser.add_argument(
            "--property", action="append", default=[], type=words, metavar="KEY", help="key of metadata; may be repeated"
        )
        parser.add_argument("--tag", action="append", default=[], type=words, help="tag; may be repeated")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.client(parsed_args)
        path = f"servers/{client.find_server(parsed_args.server)}"
        if parsed_args.description:
            client.put(path, {"server": {"description": None}})
        paths = [f"{path}/metadata/{_in_path(key)}" for key in parsed_args.property]
        paths += [f"{path}/tags/{_in_path(tag)}" for tag in parsed_args.tag]
        self.each(paths, client.delete)


class ServerLock(HttpCommand):
    """Lock servers: then only administrators change and delete them.

    Example: superconductor server lock web-1 web-2
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("servers", nargs="+", metavar="SERVER", help="id or name")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        _act(self, parsed_args, "lock")


class ServerUnlock(HttpCommand):
    """Unlock servers.

    Example: superconductor server unlock web-1 web-2
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("servers", nargs="+", metavar="SERVER", help="id or name")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        _act(self, parsed_args, "unlock")


def _act(command: HttpCommand, asked: argparse.Namespace, action: str) -> None:
    """Send an action without arguments to each server."""
    client = command.client(asked)
    command.each(asked.servers, lambda reference: client.post(f"servers/{client.find_server(reference)}/action", {action: None}))


def _in_path(text: str) -> str:
    return quote(text, safe="")
