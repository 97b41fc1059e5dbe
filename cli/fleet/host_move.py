"""``superconductor host move``: give a host to another cell."""

from __future__ import annotations

import argparse
from functools import partial

from cells import administration
from cli.shared import liveness
from cli.shared.base import Admin, at_least
from db.api.deployment.host_removal import to_cell
from db.cell import host_removal
from objects import errors
from objects.process import AGENT_BINARY


class HostMove(Admin):
    """Move an empty host to another cell.

    Stop its agent first. Wait until the old cell has no servers, claims or builds for the host; the command names what is
    left. Then start the agent with the new cell's configuration. An agent that still runs in the old cell gets no work:
    'host list' and 'status' name it. If the command was interrupted, run it again.

    Example: superconductor host move east-h1 --to west
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("host", metavar="HOST", help="name of the host")
        parser.add_argument("--to", metavar="CELL", required=True, help="its new cell (name or UUID)")
        parser.add_argument(
            "--down-after",
            metavar="SECONDS",
            type=partial(at_least, 1),
            default=liveness.DOWN_AFTER_S,
            help=f"of silence, where its agent has not said that it stops (default: {liveness.DOWN_AFTER_S})",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        database, host = self.deployment.api_database, parsed_args.host
        new = administration.find_cell(database, parsed_args.to)
        if new.is_cell0:
            raise errors.Invalid("cell0 has no hosts: name another cell with --to.")
        old = self.deployment.cell_registry.of_host(host)
        if old.uuid == new.uuid:
            if not self.is_quiet:
                self.warn_user(f"Host '{host}' is in cell '{new.name}' already")
            return
        old.write(host_removal.from_cell, host, AGENT_BINARY, parsed_args.down_after)
        database.write(to_cell, host, old.uuid, new.uuid)
        if late := old.read(host_removal.heading_for, host):
            self.status = 1
            self.warn_user(
                f"Cell '{old.name}' has builds that may still go to host '{host}', where they end in ERROR: {', '.join(late)}"
            )
