"""``server console``: what a server has written to its console, the console itself, and its URL, through the API."""

from __future__ import annotations

import argparse
from functools import partial

from cli.servers import attach
from cli.shared.base import at_least
from cli.shared.http import ApiClient, HttpCommand

TYPES = {"serial": "serial", "novnc": "vnc"}
"""Types of consoles, and their protocols."""


class ServerConsole(HttpCommand):
    """Print the end of what a server has written to its console, at most 100 KiB. Control characters are left out.

    With --attach this terminal becomes the server's serial console, until Ctrl-]. The server then controls the terminal.

    Examples:
      superconductor server console web-1 --lines 20
      superconductor server console web-1 --attach
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("server", metavar="SERVER", help="id or name of the server")
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--lines", metavar="N", type=partial(at_least, 1), help="only the last N lines (default: all)")
        group.add_argument("--attach", action="store_true", help="use the serial console in this terminal; Ctrl-] leaves it")
        group.add_argument(
            "--url", choices=sorted(TYPES), help="print the URL of the console instead; it opens it for some minutes"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if parsed_args.attach:
            attach.check_terminal()
        client = self.api_client(parsed_args)
        uuid = client.find_server(parsed_args.server)
        if parsed_args.attach:
            url = _console_url(client, uuid, "serial")
            self.app.print_error(f"the serial console of {parsed_args.server}; Ctrl-] leaves it")
            attach.attach_terminal(url)
            self.app.print_error("left the console")
        elif parsed_args.url:
            self.app.stdout.write(f"{_console_url(client, uuid, parsed_args.url)}\n")
        else:
            # what follows the last newline is a line in the API, but not for people
            length = parsed_args.lines and parsed_args.lines + 1
            output = client.post_json(f"servers/{uuid}/action", {"os-getConsoleOutput": {"length": length}})["output"]
            self.app.stdout.write(_last_lines(output, parsed_args.lines))  # a stream that escapes what controls a terminal


def _last_lines(output: str, lines: int | None) -> str:
    content = output.removesuffix("\n")
    end = output[len(content) :]
    return output if lines is None else "\n".join(content.split("\n")[-lines:]) + end


def _console_url(client: ApiClient, uuid: str, console_type: str) -> str:
    console_request = {"protocol": TYPES[console_type], "type": console_type}
    return str(client.post_json(f"servers/{uuid}/remote-consoles", {"remote_console": console_request})["remote_console"]["url"])
