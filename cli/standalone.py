"""``superconductor standalone``: the all-in-one, serving until it is told to stop."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from api.opts import Settings as ApiSettings
from cli.all_in_one import AllInOne, SimulatedHost, StateFolder, log_to
from cli.base import Admin, at_least
from cli.bootstrap import Commands, bootstrap, starter_flavors
from cli.discovering import discover_until
from db import cell_mappings
from db.engine import Database


class Standalone(Admin):
    """Run API, conductors, scheduler and simulated hosts in this one process, until Ctrl-C.

    Example: superconductor standalone --state ./region
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address of the API (default: 127.0.0.1)")
        parser.add_argument("--port", type=port, default=8774, help="port of the API, 0 for a free one (default: 8774)")
        parser.add_argument("--cells", type=partial(at_least, 1), default=2, help="cells to create in a new folder (default: 2)")
        parser.add_argument("--hosts", type=partial(at_least, 1), default=12, help="simulated hosts in each cell (default: 12)")

        parser.add_argument(
            "--noauth-anywhere", action="store_true", help="serve other machines too, although nobody who asks is authenticated"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        folder = StateFolder(Path(self.app.options.state or "superconductor-state"))
        commands = Commands(folder, sys.stderr)
        bootstrap(folder, [f"cell{n + 1}" for n in range(parsed_args.cells)], commands)
        starter_flavors(folder, commands)
        hosts = [
            SimulatedHost(name=f"{cell}-host{number + 1}", cell=cell)
            for cell in _cells(folder)
            for number in range(parsed_args.hosts)
        ]
        log_to(folder)
        api = ApiSettings(host=parsed_args.host, port=parsed_args.port, noauth_anywhere=parsed_args.noauth_anywhere)
        region = AllInOne(folder, hosts, api=api)
        stopped = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        region.start()
        try:
            discover_until(folder, region, {host.name for host in hosts}, commands, stopped)
            region.serve()
            self.app.say(f"serving at {region.endpoint}, state and log in {folder.path}; Ctrl-C stops it")
            while not stopped.wait(0.5):  # an untimed wait would not always let the signal's handler run
                pass
        finally:
            self.app.say("stopping")
            region.stop()


def port(text: str) -> int:
    """A TCP port, or 0 for a free one."""
    number = at_least(0, text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return number


def _cells(folder: StateFolder) -> list[str]:
    database = Database(folder.database_url("api"), name="api")
    try:
        return [m.name for m in database.read(cell_mappings.list_all) if not m.is_cell0]
    finally:
        database.dispose()
