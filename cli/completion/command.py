"""``superconductor completion``: what shells need to complete commands, options, values and names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from cli.completion.scripts import SHELLS, Argument, CompletedCommand
from cli.shared.base import Admin
from cli.shared.http import ApiClient, HttpCommand
from cli.shared.parser import optional_actions, positional_actions

NAMES = {
    "SERVER": "server",
    "SERVER|REQUEST": "server",
    "HOST": "host",
    "FLAVOR": "flavor",
    "IMAGE": "image",
    "CELL": "cell",
    "GROUP": "group",
    "AGGREGATE": "aggregate",
    "NETWORK": "network",
}
"""Kinds of names, by the placeholder that an argument has in the help."""
PATHS = {"FILE": "file", "DIR": "directory", "TRACE": "file"}
NAMES_LIMIT = 1000
"""Names that are offered at most."""


class Completion(Admin):
    """Print a file that completes commands, options, values and names in a shell. It need not be made anew before an upgrade.

    Names of servers, hosts, flavors and the like are asked for when Tab is pressed, and kept for a few seconds.

    Examples:
      source <(superconductor completion bash)
      superconductor completion zsh > "${fpath[1]}/_superconductor"
      superconductor completion fish > ~/.config/fish/completions/superconductor.fish
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=list(SHELLS))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.app.stdout.write(SHELLS[parsed_args.shell](list(self._completed_commands())))

    def _completed_commands(self) -> Iterable[CompletedCommand]:
        common = [_to_argument(action) for action in optional_actions(self.app.parser)]
        for name in self.app.command_names():
            factory, *_ = self.app.command_manager.find_command(name.split())
            parser = factory(self.app, None).get_parser(name)
            specific = [_to_argument(action) for action in optional_actions(parser)]
            known = {option for argument in specific for option in argument.options}
            arguments = specific + [argument for argument in common if not known & set(argument.options)]
            positional = [_to_argument(action) for action in positional_actions(parser)]
            yield CompletedCommand(name=name, options=tuple(arguments), positional=tuple(positional))


class CompletionNames(HttpCommand):
    """Print the names of one kind that a completion offers, one a line.

    Example: superconductor completion names server
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("kind", choices=sorted(set(NAMES.values())))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        names = (
            self._stored_names(parsed_args.kind)
            if parsed_args.kind in STORED
            else NAME_READERS[parsed_args.kind](self.api_client(parsed_args))
        )
        for name in sorted(set(names)):
            print(name, file=self.app.stdout)

    def _stored_names(self, kind: str) -> Iterable[str]:
        """Of what the API does not list."""
        from db.api.claims import server_groups
        from db.api.deployment import aggregates
        from db.api.servers import networks

        lists: dict[str, Callable[..., Iterable[object]]] = {
            "aggregate": aggregates.list_all,
            "group": server_groups.list_all,
            "network": networks.list_all,
        }
        return [str(getattr(row, "name", "")) for row in self.deployment.api_database.read(lists[kind])]


def _server_names(client: ApiClient) -> Iterable[str]:
    return [server["name"] for server in client.list_items("servers", "servers", NAMES_LIMIT) if "name" in server]


def _host_names(client: ApiClient) -> Iterable[str]:
    return [service["host"] for service in client.get("os-services", binary="nova-compute")["services"]]


def _flavor_names(client: ApiClient) -> Iterable[str]:
    return [flavor["name"] for flavor in client.list_items("flavors", "flavors", NAMES_LIMIT)]


def _cell_names(client: ApiClient) -> Iterable[str]:
    return [cell["name"] for cell in client.get("superconductor/status")["status"]["cells"]]


def _image_names(client: ApiClient) -> Iterable[str]:
    return [image["name"] for image in client.list_images()]


NAME_READERS: dict[str, Callable[[ApiClient], Iterable[str]]] = {
    "server": _server_names,
    "host": _host_names,
    "flavor": _flavor_names,
    "cell": _cell_names,
    "image": _image_names,
}
STORED = ("aggregate", "group", "network")


def _to_argument(action: argparse.Action) -> Argument:
    placeholder = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return Argument(
        options=tuple(action.option_strings),
        takes_value=action.nargs != 0,
        choices=tuple(str(choice) for choice in action.choices or ()),
        names=NAMES.get(placeholder, ""),
        path=PATHS.get(placeholder, ""),
        repeats=action.nargs in ("+", "*"),
        summary="" if action.help in (None, argparse.SUPPRESS) else str(action.help).partition(";")[0].partition(" (")[0],
    )
