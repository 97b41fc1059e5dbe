"""``superconductor demo``."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from api.opts import Settings as ApiSettings
from cli.all_in_one import AllInOne, Pace, SimulatedHost, StateFolder, log_to
from cli.base import Admin
from cli.bootstrap import Commands, bootstrap
from cli.demo import plan, report
from cli.demo.verdict import Evidence, at_rest, gather, judge
from cli.demo.workload import Workload
from cli.discovering import discover_until
from db import aggregates, flavors, server_groups
from db.engine import Database

PATIENCE = 180.0
"""Seconds that a workload may take to come to rest before the verdict is given on what is there."""

INTERRUPTED = 130


class Demo(Admin):
    """Boot about 500 servers on an all-in-one deployment of its own and check every outcome.

    With --state the deployment is kept there, and a run that was interrupted or killed goes on to the same verdict.

    Example: superconductor demo --state ./demo
    """

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        console = Console()
        with _folder(self.app.options.state) as path:
            folder = StateFolder(path)
            stopped = threading.Event()
            signal.signal(signal.SIGINT, lambda *_: stopped.set())
            region = _region(folder, console)
            try:
                return _run(folder, region, console, stopped)
            finally:
                region.stop()


@contextmanager
def _folder(state: str | None) -> Iterator[Path]:
    if state:
        yield Path(state)
        return
    with tempfile.TemporaryDirectory(prefix="superconductor-demo-") as name:
        yield Path(name)


def _region(folder: StateFolder, console: Console) -> AllInOne:
    commands = Commands(folder, sys.stdout)
    console.rule("databases, cells, flavors")
    bootstrap(folder, plan.CELLS, commands)
    hosts = [
        SimulatedHost(
            name=host.name,
            cell=host.cell,
            vcpus=host.vcpus,
            memory_mb=host.memory_mb,
            disk_gb=host.disk_gb,
            failure_rate=host.failure_rate,
            spawn_delay=(0.2, 1.0),
        )
        for host in plan.hosts()
    ]
    pace = Pace(spawn_timeout=4.0, build_timeout=120.0, lease_seconds=5.0, sweep_interval=0.5, report_interval=2.0)
    log_to(folder)
    return AllInOne(folder, hosts, api=ApiSettings(port=0), pace=pace)


def _define(folder: StateFolder, commands: Commands) -> None:
    """Flavors, zones and groups, as far as a run before this one has not made them."""
    database = Database(folder.database_url("api"), name="api")
    try:
        sizes = {flavor.name for flavor in database.read(flavors.list_all)}
        zones = {aggregate.name for aggregate in database.read(aggregates.list_all)}
        groups = {group.name for group in database.read(server_groups.list_all)}
    finally:
        database.dispose()
    for flavor in plan.FLAVORS:
        if flavor.name not in sizes:
            amounts = ("--vcpus", str(flavor.vcpus), "--ram", str(flavor.ram), "--disk", str(flavor.disk))
            commands.run("flavor", "create", flavor.name, "--id", flavor.name, *amounts)
    for zone, hosts in plan.ZONES.items():
        if zone not in zones:
            members = [word for host in hosts for word in ("--host", host)]
            commands.run("aggregate", "create", zone, "--zone", zone, *members)
    for group in plan.GROUPS:
        if group.name not in groups:
            commands.run("group", "create", group.name, "--policy", group.policy, "--project", plan.PROJECT)


def _run(folder: StateFolder, region: AllInOne, console: Console, stopped: threading.Event) -> int:
    hosts, items = plan.hosts(), plan.items()
    region.start()
    discover_until(folder, region, {host.name for host in hosts}, Commands(folder, sys.stdout), stopped)
    _define(folder, Commands(folder, sys.stdout))
    region.serve()
    console.rule(f"{plan.total()} servers over HTTP at {region.endpoint}")
    workload = Workload(region.endpoint, _group_uuids(folder), stopped)
    evidence = _boot(folder, workload, console, stopped)
    if stopped.is_set():
        console.print("Interrupted; with --state (make demo STATE=dir) the next run goes on from here.")
        return INTERRUPTED
    report.show(console, evidence, hosts)
    giant = next(server for server in evidence.servers if server.name == "giant")
    report.show_refusal(console, giant.name, workload.explain(giant.uuid))
    faults = judge(evidence, items, hosts)
    for fault in faults:
        console.print(f"[red]{fault}[/red]", highlight=False)
    if faults:
        console.print(f"[bold red]{len(faults)} outcomes differ from the script.[/bold red]")
        return 1
    console.print(f"[bold green]All {plan.total()} servers ended as scripted; no claim, row or guest is left over.[/bold green]")
    return 0


def _boot(folder: StateFolder, workload: Workload, console: Console, stopped: threading.Event) -> Evidence:
    """Post everything, then wait for the deployment to come to rest."""
    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        posted = progress.add_task("accepted", total=plan.total())
        ended = progress.add_task("finished", total=plan.total())
        clients = ThreadPoolExecutor(1)
        posting = clients.submit(workload.post, plan.items(), lambda item: progress.advance(posted, item.count))
        give_up = time.monotonic() + PATIENCE
        while True:
            evidence = gather(folder, plan.hosts())
            progress.update(ended, completed=sum(1 for server in evidence.servers if server.state != "building"))
            if stopped.wait(0.5) or time.monotonic() > give_up:
                break
            if posting.done():
                posting.result()  # raises what stopped it
                if len(evidence.servers) >= plan.total() and at_rest(evidence):
                    break
        posting.result()
        clients.shutdown()
    return gather(folder, plan.hosts())


def _group_uuids(folder: StateFolder) -> dict[str, str]:
    database = Database(folder.database_url("api"), name="api")
    try:
        return {group.name: group.uuid for group in database.read(server_groups.list_all)}
    finally:
        database.dispose()
