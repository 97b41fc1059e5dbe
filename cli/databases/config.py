"""``superconductor config``: what the processes would read, and whether they could work with it."""

from __future__ import annotations

import argparse
from typing import Any

from cliff.columns import FormattableColumn

from cli.databases import connecting, effective
from cli.databases.effective import ROLES, Effective
from cli.shared.base import Admin, AdminLister, Row, Table
from objects import errors


class Value(FormattableColumn[Any]):
    """The value of an option: for people as a file has it, for programs as it is."""

    def human_readable(self) -> str:
        value = self._value
        if isinstance(value, list):
            return ",".join(str(item) for item in value)
        if isinstance(value, dict):
            return ",".join(f"{key}:{item}" for key, item in value.items())
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


class OfFiles(Admin):
    """Which files, and what is said about names that nobody knows."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--role", choices=list(ROLES), help="only what the processes of this role read (default: all roles)")
        parser.add_argument("--strict", action="store_true", help="fail if a file or a variable names an unknown option")

    def read(self, args: argparse.Namespace) -> Effective:
        if self.deployment.named_state is not None:
            raise errors.Invalid(
                "--state or SUPERCONDUCTOR_STATE: an all-in-one reads no configuration; give --config-file or --config-dir"
            )
        options = Effective(self.deployment.config_arguments, args.role)
        for text in options.list_strangers():
            self.warn_user(text)
            self.status = self.status or int(args.strict)
        return options


class ConfigShow(OfFiles, AdminLister):
    """Show the configuration that processes would read from these files and this environment, its secrets masked.

    Only what was set is shown, and --all shows the defaults too. Names that no option has are told on standard error.

    Examples:
      superconductor config show --config-file single-cell.conf --role conductor
      superconductor config show --all -f yaml
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--all", action="store_true", help="also options that have their default")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        settings = self.read(parsed_args).list_settings()
        rows: list[Row] = [
            (setting.group, setting.name, Value(setting.value), setting.source)
            for setting in settings
            if setting.is_set or parsed_args.all
        ]
        return ("Group", "Option", "Value", "Source"), rows


class ConfigCheck(OfFiles, AdminLister):
    """Check for each role whether its processes could start with this configuration, and if not, why.

    With --role, the exit status is 1 if that one could not, or would ignore an option. Nothing is connected to unless --connect
    says so: databases and buses may be away.

    Examples:
      superconductor config check --config-file compute.conf --role compute --strict
      superconductor config check --config-file conductor.conf --role conductor --connect
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--connect",
            action="store_true",
            help="also ask the databases and buses that are named: whether they answer, and whether a Galera cluster is set up as "
            "it has to be; the exit status is 1 if one does not",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        read = self.read(parsed_args)
        for text in read.list_exposed():
            self.warn_user(text)
        rows = [self._check_row(role, parsed_args) for role in ROLES if parsed_args.role in (None, role)]
        if parsed_args.connect:
            for answer in connecting.try_connections(read.conf):
                self.status = self.status or int(not answer.fits)
                rows.append((answer.option, answer.text))
        return ("Role", "Result"), rows

    def _check_row(self, role: str, args: argparse.Namespace) -> Row:
        try:
            return role, f"could start: {effective.check_role(role, Effective(self.deployment.config_arguments, role).conf)}"
        except errors.SuperconductorError as error:
            self.status = self.status or int(args.role is not None)
            return role, f"could not start: {error}"
