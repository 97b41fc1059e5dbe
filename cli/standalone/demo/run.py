"""Run the demo's workload on a deployment that serves, and judge what came of it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.standalone.demo import plan, report
from cli.standalone.demo.boots import define_flavors, define_groups, group_uuids
from cli.standalone.demo.evidence import Evidence, at_rest, gather_evidence
from cli.standalone.demo.hosts import SimulatedFindings
from cli.standalone.demo.script import judge_script
from cli.standalone.demo.site import Site
from cli.standalone.demo.workload import Workload
from db.api.deployment import aggregates
from db.api.projects import flavors
from db.sql.engine import ApiDatabase

SETTLE_TIMEOUT_S = 300.0
"""Seconds that a workload may take to come to rest before the verdict is given on what is there."""

EXIT_INTERRUPTED = 130


def run(site: Site, console: Console, stopped: threading.Event, again: str) -> int:
    """The exit status: 0 where every outcome is as scripted, 1 where one differs, EXIT_INTERRUPTED where ``stopped`` was set.

    ``again`` is what to say of an interrupted run: how to go on with it.
    """
    _define_resources(site)
    console.rule(f"{plan.total_servers()} servers over HTTP at {' and '.join(site.endpoints)}")
    began = time.monotonic()
    workload = Workload(site.endpoints, group_uuids(site.records.database_url("api")), stopped)
    evidence = _boot_all(site, workload, console, stopped)
    if stopped.is_set():
        console.print(again, highlight=False, soft_wrap=True)
        return EXIT_INTERRUPTED
    report.show_report(console, evidence, site.hosts)
    giant = next((server for server in evidence.servers if server.name == "giant"), None)
    if giant is not None:
        report.show_refusal(console, giant.name, workload.read_explanation(giant.uuid))
    faults = judge_script(evidence, plan.plan_items(), site.hosts)
    for fault in faults:
        console.print(f"[red]{fault}[/red]", highlight=False)
    if faults:
        console.print(f"[bold red]{len(faults)} outcomes differ from the script.[/bold red]")
        return 1
    console.print(
        f"[bold green]All {plan.total_servers()} servers ended as scripted; no claim, row or guest is left over.[/bold green]"
        f" The workload took {time.monotonic() - began:.0f} s."
    )
    return 0


def _define_resources(site: Site) -> None:
    """Flavors, zones and groups, as far as a run before this one has not made them."""
    database = ApiDatabase(site.records.database_url("api"), name="api")
    try:
        sizes = {flavor.name for flavor in database.read(flavors.list_all)}
        zones = {aggregate.name for aggregate in database.read(aggregates.list_all)}
    finally:
        database.dispose_connections()
    define_flavors(site.commands, plan.FLAVORS, sizes)
    for zone, hosts in plan.plan_zones(len(site.hosts) // len(plan.CELLS)).items():
        if zone not in zones:
            members = [word for host in hosts for word in ("--host", host)]
            site.commands.run("aggregate", "create", zone, "--zone", zone, *members)
    define_groups(site.commands, plan.GROUPS, plan.PROJECT, group_uuids(site.records.database_url("api")))


def _boot_all(site: Site, workload: Workload, console: Console, stopped: threading.Event) -> Evidence:
    """Post everything, then wait for the deployment to come to rest."""
    findings = SimulatedFindings(site.records.path / "hosts", [host.name for host in site.hosts])
    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        posted = progress.add_task("accepted", total=plan.total_servers())
        ended = progress.add_task("finished", total=plan.total_servers())
        clients = ThreadPoolExecutor(1)
        posting = clients.submit(workload.post_items, plan.plan_items(), lambda item: progress.advance(posted, item.count))
        give_up = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            evidence = gather_evidence(site.records, findings)
            progress.update(ended, completed=sum(1 for server in evidence.servers if server.state != "building"))
            if stopped.wait(0.5) or time.monotonic() > give_up:
                break
            if posting.done():
                posting.result()  # raises what stopped it
                if len(evidence.servers) >= plan.total_servers() and at_rest(evidence):
                    break
        posting.result()
        clients.shutdown()
    return gather_evidence(site.records, findings)
