"""``server console``: what a server has written to its console, through the API."""

from __future__ import annotations

import argparse
from functools import partial

from cli.base import at_least
from cli.http import HttpCommand


class ServerConsole(HttpCommand):
    """Print the end of what a server has written to its console, at most 100 KiB. Control characters are left out.

    Example: superconductor server console web-1 --lines 20
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("server", metavar="SERVER", help="id or name of the server")
        parser.add_argument("--lines", metavar="N", type=partial(at_least, 1), help="only the last N lines (default: all)")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.client(parsed_args)
        uuid = client.find_server(parsed_args.server)
        output = client.post(f"servers/{uuid}/action", {"os-getConsoleOutput": {"length": parsed_args.lines}})["output"]
        self.app.stdout.write(output)  # a stream that escapes what controls a terminal
