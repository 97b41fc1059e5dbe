"""``superconductor demo``."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from api.opts import ApiSettings
from cli.shared.base import Admin
from cli.standalone.all_in_one import AllInOne, DeploymentTimes, SimulatedHost, StateFolder, log_to
from cli.standalone.bootstrap import Commands, bootstrap_databases
from cli.standalone.demo import machines, plan
from cli.standalone.demo.run import run
from cli.standalone.demo.site import Site
from cli.standalone.discovery import discover_until
from objects import errors

AGAIN = "Interrupted; with --state (make demo STATE=dir) the next run goes on from here."


class Demo(Admin):
    """Boot about 500 servers on an all-in-one deployment of its own and check every outcome. Hosts are simulated.

    With --driver libvirt it boots six real guests on two hosts of this machine, which need libvirt and QEMU, not KVM.

    With --state the deployment is kept there, and a run that was interrupted or killed goes on to the same verdict.

    Example: superconductor demo --state ./demo
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--driver", choices=("simulated", "libvirt"), default="simulated", help="what hosts are (default: simulated)"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        console = Console()
        if parsed_args.driver == "libvirt":
            return _run_machines(self.app.options.state, console)
        with _demo_folder(self.app.options.state) as path:
            folder = StateFolder(path)
            folder.claim_driver("simulated")
            stopped = threading.Event()
            signal.signal(signal.SIGINT, lambda *_: stopped.set())
            region = _build_region(folder, console)
            try:
                return _run(folder, region, console, stopped)
            finally:
                region.stop()


def _run_machines(state: str | None, console: Console) -> int:
    if state and (Path(state) / "api.db").exists():
        raise errors.Conflict(f"{state} has a deployment already: this demo needs a new folder")
    stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    make_commands = partial(Commands, out=sys.stdout)
    with _demo_folder(state) as path, machines.run_region(path, make_commands, stopped) as (endpoint, hosts):
        return machines.run(endpoint, hosts, console, stopped)


@contextmanager
def _demo_folder(state: str | None) -> Iterator[Path]:
    if state:
        yield Path(state)
        return
    with tempfile.TemporaryDirectory(prefix="superconductor-demo-") as name:
        yield Path(name)


def _build_region(folder: StateFolder, console: Console) -> AllInOne:
    commands = Commands(folder, sys.stdout)
    console.rule("databases, cells, flavors")
    bootstrap_databases(folder, plan.CELLS, commands)
    hosts = [
        SimulatedHost(
            name=host.name,
            cell=host.cell,
            vcpus=host.vcpus,
            memory_mb=host.memory_mb,
            disk_gb=host.disk_gb,
            failure_rate=host.failure_rate,
            spawn_delay=plan.SPAWN_DELAY_S,
        )
        for host in plan.plan_hosts()
    ]
    pace = DeploymentTimes(spawn_timeout=4.0, build_timeout=120.0, lease_seconds=5.0, sweep_interval=0.5, report_interval=2.0)
    log_to(folder)
    return AllInOne(folder, hosts, api=ApiSettings(port=0), pace=pace)


def _run(folder: StateFolder, region: AllInOne, console: Console, stopped: threading.Event) -> int:
    hosts, commands = plan.plan_hosts(), Commands(folder, sys.stdout)
    region.start()
    discover_until(folder, region, {host.name for host in hosts}, commands, stopped)
    region.serve_api()
    return run(Site(folder, commands, (region.api_endpoint,), hosts), console, stopped, AGAIN)
