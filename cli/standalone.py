"""``superconductor standalone``: the all-in-one, serving until it is told to stop."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from api.opts import Settings as ApiSettings
from cli.all_in_one import AllInOne, SimulatedHost, StateFolder, log_to
from cli.base import Admin
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
        parser.add_argument("--port", type=int, default=8774, help="port of the API, 0 for a free one (default: 8774)")
        parser.add_argument("--cells", type=int, default=2, help="cells to create in a new folder (default: 2)")
        parser.add_argument("--hosts", type=int, default=12, help="simulated hosts in each cell (default: 12)")

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
        region = AllInOne(folder, hosts, api=ApiSettings(host=parsed_args.host, port=parsed_args.port))
        stopped = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        region.start()
        try:
            discover_until(folder, region, {host.name for host in hosts}, commands, stopped)
            self.app.say(f"serving at {region.endpoint}, state and log in {folder.path}; Ctrl-C stops it")
            stopped.wait()
        finally:
            self.app.say("stopping")
            region.stop()


def _cells(folder: StateFolder) -> list[str]:
    database = Database(folder.database_url("api"), name="api")
    try:
        return [m.name for m in database.read(cell_mappings.list_all) if not m.is_cell0]
    finally:
        database.dispose()
