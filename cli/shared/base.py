"""What the commands of operators have in common."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cliff.command import Command
from cliff.lister import Lister
from cliff.show import ShowOne

from cli.shared.application import Application, set_usage_errors
from cli.shared.deployment import Deployment
from cli.shared.formats import format_manager
from cli.shared.parser import HelpFormatter, optional_actions
from objects import errors
from objects.base import INT32_MAX
from objects.text import is_safe

T = TypeVar("T")
Row = tuple[object, ...]
Table = tuple[Sequence[str], Iterable[Row]]

TWIN = "Host {host} reports from cells {cells}: no server goes there until one of the agents stops or has another name"
"""What is said of a host that agents in two cells speak for."""


ASTRAY = (
    "Host {host} reports in cell {cell} and is mapped to cell {home}: no server goes there. "
    "Give its agent the configuration of {home}, or run 'superconductor host move {host} --to {cell}'"
)
"""What is said of a host whose only agent reports in another cell than it is mapped to."""


EVERYWHERE: Mapping[type[errors.SuperconductorError], int] = {errors.NoSuchCell: 3}
"""Errors that have the same exit status in every command. All others have 1."""


class Admin(Command):
    """A command that works on the databases. Its docstring is its help: a sentence, then an example.

    ``status`` becomes the exit status: a command that did only a part of its work sets it to 1 and says which on standard error.
    ``statuses``: errors that have an exit status of their own (docs/commands.md); all others have those of every command.
    """

    statuses: Mapping[type[errors.SuperconductorError], int] = {}

    app: Application

    def __init__(self, app: Application, app_args: argparse.Namespace | None, cmd_name: str | None = None) -> None:
        super().__init__(app, app_args, None)  # a name would make cliff search all installed packages for hooks
        self.deployment = Deployment(app.options)
        self.status = 0

    def _load_formatter_plugins(self) -> Any:
        """The formats of a command's output. Commands without output never ask."""
        return format_manager(self.formatter_namespace)  # type: ignore[attr-defined]  # of the class beside this one, which has an output

    def get_epilog(self) -> str:
        """Nothing: cliff would search all installed packages for the one that a command comes from."""
        return ""

    def get_description(self) -> str:
        return inspect.cleandoc(type(self).__doc__ or "")

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.formatter_class = HelpFormatter
        for option in optional_actions(parser):
            if option.dest == "sort_columns":  # cliff's text says that it ignores those that there are not
                option.help = "column to sort by, whatever the case; may be repeated, the first is the most important"
        set_usage_errors(parser)
        self.add_arguments(parser)
        return parser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The command's own arguments."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            return super().run(parsed_args) or self.status
        finally:
            self.deployment.close()

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        """Of commands that have an output. Raises Invalid for columns that there are not: cliff leaves those out."""
        columns = [*parsed_args.columns, *getattr(parsed_args, "sort_columns", ())]
        known = {column.lower().replace(" ", "_") for column in column_names}
        unknown = [repr(name) for name in columns if name.lower().strip().replace(" ", "_") not in known]
        if unknown:
            there = ", ".join(repr(column) if " " in column else column for column in column_names)
            raise errors.Invalid(f"There is no column {' or '.join(dict.fromkeys(unknown))}: there are {there}.")
        status: int = super().produce_output(parsed_args, column_names, data)  # type: ignore[misc]  # of the class beside this one
        return status

    def do_each(self, items: Iterable[T], work: Callable[[T], object]) -> None:
        """Do ``work`` for every item. Who is refused is told of, the others are done; the exit status is the first refusal's."""
        for item in items:
            try:
                work(item)
            except errors.DatabaseUnavailable:
                raise
            except errors.SuperconductorError as error:
                self.status = self.status or self.status_of(error)
                self.warn_user(str(error))

    def status_of(self, error: errors.SuperconductorError) -> int:
        """The exit status of a command that is refused with this."""
        return next((status for kind, status in (*self.statuses.items(), *EVERYWHERE.items()) if isinstance(error, kind)), 1)

    def warn_user(self, text: str) -> None:
        """One line on standard error, beside the result."""
        self.app.print_error(text)

    @property
    def is_quiet(self) -> bool:
        """Whether only failures are to be told."""
        return bool(self.app.options.verbose_level == 0)

    @property
    def is_verbose(self) -> bool:
        return bool(self.app.options.verbose_level > 1)


class AdminLister(Admin, Lister):
    """A command whose result is a table."""


class AdminShow(Admin, ShowOne):
    """A command whose result is one object."""


class ActionLister(AdminLister):
    """A command that does something, and shows a table of what it did unless told to be quiet."""

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[Any]]) -> int:
        return 0 if self.is_quiet else super().produce_output(parsed_args, column_names, data)


class ActionShow(AdminShow):
    """A command that makes or changes one object, and shows it unless told to be quiet."""

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Sequence[Any]) -> int:
        return 0 if self.is_quiet else super().produce_output(parsed_args, column_names, data)


# -- values of arguments: each raises ArgumentTypeError with what is allowed, which argparse turns into a usage error ------------


def at_least(least: int, text: str) -> int:
    """A whole number from ``least`` up: ``type=partial(at_least, 1)``."""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= INT32_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {INT32_MAX}")
    return number


def parse_duration(text: str) -> int:
    """Seconds, from ``90``, ``90s``, ``10m`` or ``2h``."""
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    if not (number.isascii() and number.isdigit() and 0 < int(number[:9]) * units[unit] <= INT32_MAX and len(number) < 10):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a time such as 90s, 10m or 2h")
    return int(number) * units[unit]


def key_value(text: str) -> tuple[str, str]:
    """``key=value``; the value may be empty and may hold further '='."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    safe_text(text)
    if len(key) > 255 or len(value) > 255:
        raise argparse.ArgumentTypeError(f"{key[:20]!r}...: keys and values have at most 255 characters")
    return key.strip(), value


def safe_text(text: str) -> str:
    """A text without control characters but tab, newline and carriage return."""
    if not is_safe(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} has control characters")
    return text


def checked_name(text: str) -> str:
    """A name of 1 to 255 printable characters, not beginning or ending with a space, and no dot segment of a path."""
    if text in (".", ".."):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name: it could not stand in a path")
    if not 1 <= len(text) <= 255 or not text.isprintable() or text != text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not a name of 1 to 255 printable characters without outer spaces")
    return text


def secret_text(text: str) -> str:
    """A password, or a URL that may hold one: ``@FILE`` is read from that file's first line, ``-`` from standard input.

    What is given literally can be read by other users of the machine, in the list of processes.
    """
    if text == "-":
        return sys.stdin.readline().strip()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise argparse.ArgumentTypeError(f"{text[1:]} cannot be read: {reason}") from None
    return text


def add_properties(parser: argparse.ArgumentParser, subject: str) -> None:
    """``--property KEY=VALUE``, any number of times."""
    text = f"{subject}; may be repeated"
    parser.add_argument(
        "--property", dest="properties", metavar="KEY=VALUE", type=key_value, action="append", default=[], help=text
    )


def format_properties(properties: dict[str, str]) -> str:
    """Properties as one readable cell of a table."""
    return ", ".join(f"{key}={value}" for key, value in sorted(properties.items()))
