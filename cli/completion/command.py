"""``superconductor completion``: what shells need to complete commands, options, values and names."""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
from collections.abc import Callable, Iterable

from cli.completion.scripts import SHELLS
from cli.shared.application import Application
from cli.shared.base import Admin
from cli.shared.deployment import Deployment
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
PATHS = ("FILE", "DIR", "TRACE")
DEPLOYMENT_OPTIONS = ("endpoint", "project", "state", "config_file")
"""Options that say where names are asked for."""
NAMES_LIMIT = 1000
"""Names that are offered at most."""


class Completion(Admin):
    """Print a file that completes commands, options, values and names in a shell.

    What is offered is asked for when Tab is pressed: names of servers, hosts, flavors and the like come from the deployment.

    Examples:
      source <(superconductor completion bash)
      superconductor completion zsh > "${fpath[1]}/_superconductor"
      superconductor completion fish > ~/.config/fish/completions/superconductor.fish
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=list(SHELLS))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.app.stdout.write(SHELLS[parsed_args.shell])


class CompletionWords(Admin):
    """Print what may stand for the last word of a command line, one a line. Completion files run it.

    Example: superconductor completion words -- server sh
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("words", metavar="WORD", nargs="*", help="the words after 'superconductor', the last perhaps empty")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        *before, current = parsed_args.words or [""]
        line = TypedLine(self.app)
        for word in before:
            line.read_word(word)
        current = current.removeprefix("=")  # bash takes it for a word of its own
        for offered in sorted(line.list_candidates(current)):
            if offered.startswith(current):
                print(offered, file=self.app.stdout)


class TypedLine:
    """A command line as far as it is typed: its command, the option whose value comes next, and how many arguments it has."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._command: tuple[str, ...] = ()
        self._arguments = 0
        self._pending: argparse.Action | None = None
        self._deployment_options: list[str] = []

    def read_word(self, word: str) -> None:
        """Take the next complete word into account."""
        if word == "=":
            return
        if self._pending is not None:
            if self._pending.dest in DEPLOYMENT_OPTIONS:
                self._deployment_options += [self._pending.option_strings[0], word]
            self._pending = None
        elif word.startswith("-"):
            option = next((known for known in self._known_options() if word in known.option_strings), None)
            self._pending = option if option is not None and option.nargs != 0 else None
        elif not self._arguments and word in self._next_words():
            self._command = () if word == "help" else (*self._command, word)
        else:
            self._arguments += 1

    def list_candidates(self, current: str) -> list[str]:
        """What may stand for the word that begins with ``current``."""
        if self._pending is not None:
            return self._list_values(self._pending, current)
        if current.startswith("-"):
            return [text for option in self._known_options() for text in option.option_strings]
        candidates = [] if self._arguments else self._next_words()
        positional = positional_actions(self._command_parser())
        if positional and (self._arguments < len(positional) or positional[-1].nargs in ("+", "*")):
            candidates += self._list_values(positional[min(self._arguments, len(positional) - 1)], current)
        return candidates

    def _next_words(self) -> list[str]:
        """The words that may follow the first words of commands."""
        length = len(self._command)
        split = [tuple(name.split()) for name in self._app.command_names()]
        words = {words[length] for words in split if words[:length] == self._command and len(words) > length}
        return sorted(words | ({"help"} if not length else set()))

    def _known_options(self) -> list[argparse.Action]:
        """Those of the command, and those that every command has."""
        command_options = optional_actions(self._command_parser())
        known = {text for option in command_options for text in option.option_strings}
        return command_options + [option for option in optional_actions(self._app.parser) if not known & set(option.option_strings)]

    def _command_parser(self) -> argparse.ArgumentParser:
        """That of the command; without options of its own while the command is not complete."""
        name = " ".join(self._command)
        if name not in self._app.command_names():
            return argparse.ArgumentParser(add_help=False)
        factory, *_ = self._app.command_manager.find_command(list(self._command))
        parser: argparse.ArgumentParser = factory(self._app, None).get_parser(name)
        return parser

    def _list_values(self, action: argparse.Action, current: str) -> list[str]:
        """The values of an option, or of an argument."""
        placeholder = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        if placeholder in NAMES:
            return self._ask_names(NAMES[placeholder])
        if placeholder in PATHS:
            return _list_paths(current, folders_only=placeholder == "DIR")
        return [str(choice) for choice in action.choices or ()]

    def _ask_names(self, kind: str) -> list[str]:
        """Ask the deployment that the line names. Raises what the command ``completion names`` does."""
        options, of_command = self._app.parser.parse_known_args(self._deployment_options)
        command = CompletionNames(self._app, None)
        with contextlib.closing(Deployment(options)) as command.deployment:
            return command.list_names(command.get_parser("completion names").parse_args([kind, *of_command]))


def _list_paths(beginning: str, *, folders_only: bool) -> list[str]:
    """Files and folders whose path begins so; a folder ends in a slash."""
    paths = [f"{path}/" if os.path.isdir(path) else path for path in glob.glob(f"{glob.escape(beginning)}*")]
    return [path for path in paths if path.endswith("/") or not folders_only]


class CompletionNames(HttpCommand):
    """Print the names of one kind that a completion offers, one a line.

    Example: superconductor completion names server
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("kind", choices=sorted(set(NAMES.values())))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        for name in self.list_names(parsed_args):
            print(name, file=self.app.stdout)

    def list_names(self, parsed_args: argparse.Namespace) -> list[str]:
        """The names, each once and in order."""
        if parsed_args.kind in STORED:
            return sorted(set(self._stored_names(parsed_args.kind)))
        return sorted(set(NAME_READERS[parsed_args.kind](self.api_client(parsed_args))))

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
