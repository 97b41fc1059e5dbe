"""``server diagnostics``: what the hypervisor knows of a server, through the API."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from cliff.show import ShowOne

from cli.servers.server import Nested
from cli.shared.http import HttpCommand


class ServerDiagnosticsShow(HttpCommand, ShowOne):
    """Show what the hypervisor knows of a server: its state, and what its CPUs, disks and interfaces have done. For administrators.

    Example: superconductor server diagnostics web-1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("server", metavar="SERVER", help="id or name of the server")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        client = self.api_client(parsed_args)
        diagnostics = client.get(f"servers/{client.find_server(parsed_args.server)}/diagnostics")
        return tuple(diagnostics), tuple(
            Nested(value) if isinstance(value, dict | list) else value for value in diagnostics.values()
        )
