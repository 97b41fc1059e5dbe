"""``superconductor standalone``: the all-in-one, serving until it is told to stop."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path

from cliff.command import Command

from api.opts import Settings as ApiSettings
from cli.all_in_one import AllInOne, SimulatedHost, StateFolder
from cli.bootstrap import Commands, bootstrap, starter_flavors
from cli.discovering import discover_until
from db import cell_mappings
from db.engine import Database

LOG = logging.getLogger(__name__)


class Standalone(Command):
    """Run API, conductors, scheduler and simulated hosts in this one process, until Ctrl-C.

    Example: superconductor standalone --state ./region
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("--state", dest="folder", type=Path, help="folder that keeps everything (default: ./superconductor-state)")
        parser.add_argument("--host", default="127.0.0.1", help="address of the API (default: 127.0.0.1)")
        parser.add_argument("--port", type=int, default=8774, help="port of the API, 0 for a free one (default: 8774)")
        parser.add_argument("--cells", type=int, default=2, help="cells to create in a new folder (default: 2)")
        parser.add_argument("--hosts", type=int, default=12, help="simulated hosts in each cell (default: 12)")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        path = parsed_args.folder or getattr(self.app_args, "state", None) or "superconductor-state"
        folder = StateFolder(Path(path))
        commands = Commands(folder, sys.stderr)
        bootstrap(folder, [f"cell{n + 1}" for n in range(parsed_args.cells)], commands)
        starter_flavors(folder, commands)
        hosts = [
            SimulatedHost(name=f"{cell}-host{number + 1}", cell=cell)
            for cell in _cells(folder)
            for number in range(parsed_args.hosts)
        ]
        region = AllInOne(folder, hosts, api=ApiSettings(host=parsed_args.host, port=parsed_args.port))
        stopped = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        region.start()
        try:
            discover_until(folder, {host.name for host in hosts}, commands, stopped)
            print(f"superconductor serves at {region.endpoint}, state in {folder.path}; Ctrl-C stops it", file=sys.stderr, flush=True)
            stopped.wait()
        finally:
            print("stopping", file=sys.stderr, flush=True)
            region.stop()


def _cells(folder: StateFolder) -> list[str]:
    database = Database(folder.database_url("api"), name="api")
    try:
        return [m.name for m in database.read(cell_mappings.list_all) if not m.is_cell0]
    finally:
        database.dispose()
