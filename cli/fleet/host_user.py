"""``superconductor host user``: what a new host needs to log in to its cell's broker as itself."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from cells import template
from cells.administration import find_cell
from cli.fleet import agent_files
from cli.shared.base import Admin
from objects import errors


class HostUser(Admin):
    """Write files that give each host its own broker user: DIR/HOST.users.json and DIR/HOST.conf.

    The first is for the broker: 'rabbitmqctl import_definitions' creates the user with an agent's permissions, or changes its
    password. The second is the agent's configuration. Both hold the new password; only you may read them. With --like the
    second is a copy of another agent's file, with this host and its login. Run it again with --force to change the password.

    Examples:
      superconductor host user cell1-host2 --cell cell1 --folder cloud/etc --like cloud/etc/cell1-compute.conf
      superconductor host user cell1-host3 cell1-host4 --cell cell1 --folder .
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("hosts", metavar="HOST", nargs="+", help="name of the host")
        parser.add_argument("--cell", metavar="CELL", required=True, help="name or uuid of the cell that the hosts are in")
        parser.add_argument("--folder", metavar="DIR", type=Path, default=Path(), help="where the files go (default: here)")
        parser.add_argument("--like", metavar="FILE", type=Path, help="the configuration of another agent of the cell")
        parser.add_argument(
            "--prefix", metavar="TEXT", default="", help="[conductor] agent_user_prefix of the cell's conductors, if they have one"
        )
        parser.add_argument("--force", action="store_true", help="overwrite files; the password is a new one")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        cell = find_cell(self.deployment.api_database, parsed_args.cell)
        bus = template.expand_mapping(cell, self.deployment.registry_settings.local).transport_url
        if not agent_files.has_users(bus):
            raise errors.Invalid(f"Cell '{cell.name}' is on no broker: its hosts need no users")
        like = _read(parsed_args.like) if parsed_args.like else None
        logins = [agent_files.new_login(bus, host, parsed_args.prefix) for host in dict.fromkeys(parsed_args.hosts)]
        files = [
            (parsed_args.folder / f"{planned.host}.users.json", parsed_args.folder / f"{planned.host}.conf") for planned in logins
        ]
        there = [str(file) for pair in files for file in pair if file.exists()]
        if there and not parsed_args.force:
            raise errors.Conflict(f"{', '.join(there)} exists already: give another --folder, or --force to overwrite it")
        for login, (users, conf) in zip(logins, files, strict=True):
            try:
                agent_files.write_private(users, agent_files.users_text(login))
                agent_files.write_private(conf, agent_files.agent_text(login, like))
            except OSError as error:
                raise errors.Invalid(f"{users.parent}: its files cannot be written: {error.strerror}") from None
        if self.is_quiet:
            return
        for login, (users, conf) in zip(logins, files, strict=True):
            instruction = (
                f"Broker user {login.user_name} of host {login.host}: make it on the broker, then start or restart the agent:"
            )
            steps = (
                f"rabbitmqctl import_definitions < {shlex.quote(str(users))}",
                f"superconductor-compute --config-file {shlex.quote(str(conf))}",
            )
            print(instruction, *(f"    {step}" for step in steps), sep="\n", file=self.app.stdout)


def _read(file: Path) -> str:
    """Raises Invalid."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.Invalid(f"--like: {file} cannot be read: {error}") from None
