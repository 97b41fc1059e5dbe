"""What operations on servers cost in an all-in-one with 24 simulated hosts in two cells: statements, messages, time.

    python bench/moves.py            the figures of docs/performance.md (about two minutes)
    python bench/moves.py --smoke    the same paths in a few seconds, figures not to be quoted

Counted as ``bench/boots.py`` does: what runs on the clock is measured alone and taken off. Spawns and copies take no time. An
evacuation counts from when its hosts are called dead until each server is ACTIVE elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from bench._script import parser_of, print_table
from bench.boots import CLOCK, Bench, Clock, measure_idle, running_deployment
from cells.cell import Cell
from cells.emptying import Emptier, Emptying, HostCondition, MoveOrder
from cells.opts import RegistrySettings
from cells.registry import CellRegistry
from cli.standalone.all_in_one import DeploymentTimes
from db.api.claims.claims import Ledger
from db.api.operations import operations
from db.api.servers import mappings
from db.cell import services
from db.sql.engine import ApiDatabase
from objects.instance import Server
from objects.operation import OperationKind
from objects.process import AGENT_BINARY
from service.periodic import wait_until

PATIENCE_S = 300.0
ACTIONS = ("os-stop", "os-start", "migrate", "os-migrateLive", "evacuate", "shelve", "unshelve")
VALUES: dict[str, Any] = {
    "os-migrateLive": {"host": None, "block_migration": "auto"},
    "evacuate": {},
    "migrate": {"superconductor:verify": False},
}
"""What the bodies of these actions say."""


class Operators:
    """What an operator's commands open: the API database and the cells."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.api = ApiDatabase(bench.folder.database_url("api"), name="bench")
        self.registry = CellRegistry(self.api, RegistrySettings())
        self.ledger = Ledger(self.api, "bench")

    def close(self) -> None:
        self.registry.close()
        self.api.dispose_connections()

    def list_servers(self, name: str) -> list[Server]:
        return self.api.read(mappings.list_, mappings.ServerQuery(name=f"^{name}", limit=100_000))

    def request_action(self, uuid: str, action: str) -> None:
        body = {action: VALUES.get(action)}
        url = f"{self.bench.region.api_endpoint}/servers/{uuid}/action"
        answer = self.bench.thread_session().post(url, json=body, headers={"OpenStack-API-Version": "compute 2.53"})
        assert answer.status_code in (200, 202), answer.text

    def call_dead(self, uuids: Sequence[str]) -> list[tuple[Cell, str]]:
        """Say so of the hosts of these servers; returns them with their cells."""
        servers = [server for uuid in uuids if (server := self.api.read(mappings.get, uuid)) is not None]
        homes = {(server.cell_uuid or "", server.host or "") for server in servers}
        cells_and_hosts = [(self.registry.get(cell_uuid), host) for cell_uuid, host in sorted(homes)]
        for cell, host in cells_and_hosts:
            cell.write(services.set_forced_down, host, AGENT_BINARY, True, cell.current_time())
        return cells_and_hosts

    def wait(self, uuids: Sequence[str]) -> None:
        """Wait until none of these servers has an open operation."""
        assert wait_until(lambda: not self.api.read(operations.open_for, uuids), PATIENCE_S, pause=0.05)


@contextmanager
def opened_operators(bench: Bench) -> Iterator[Operators]:
    opened = Operators(bench)
    try:
        yield opened
    finally:
        opened.close()


def measure_cost(at: Operators, console: Console, names: Sequence[str], count: int, clock: Clock) -> None:
    """Statements and messages of one operation of each kind, the mean of ``count`` after each other."""
    bench = at.bench
    rows = []
    bench.boot_servers("moved-", count)
    bench.wait("moved-", count)
    uuids = [server.uuid for server in at.list_servers("moved-")]
    for action in names:
        dead = at.call_dead(uuids) if action == "evacuate" else []
        time.sleep(1.0)
        with bench.statements:
            bench.statements.reset_counts()
            bench.messages.reset_counts()
            began = time.monotonic()
            for uuid in uuids:
                at.request_action(uuid, action)
                at.wait([uuid])
            taken = time.monotonic() - began
            time.sleep(1.0)  # what follows: the end of the old body
            statement_counts = bench.statements.count_by_statement()
        for cell, host in dead:
            cell.write(services.set_forced_down, host, AGENT_BINARY, False, cell.current_time())
        by_place: dict[str, float] = {"api": 0.0, "cells": 0.0}
        for (database, text), seen in statement_counts.items():
            if database != "bench":
                extra = seen.executions - clock.get((database, text), 0.0) * (taken + 1.0)
                by_place["api" if database == "api" else "cells"] += max(0.0, extra)
        sent = bench.messages.counts_by_method()
        answers = sum(number for (_, _, kind), number in sent.items() if kind.name == "CALL")
        beats = sum(number for (_, method, _), number in sent.items() if method in CLOCK)
        api, cells = by_place["api"] / count, by_place["cells"] / count
        messages = (sum(sent.values()) + answers - beats) / count
        rows.append((action, f"{api:.0f}", f"{cells:.0f}", f"{api + cells:.0f}", f"{messages:.1f}", f"{taken / count * 1000:.0f}"))
    title = "Statements and messages (answers included) of one operation"
    print_table(console, title, ("operation", "api", "cells", "all", "messages", "ms"), rows)


def empty_hosts(
    at: Operators, console: Console, title: str, cell: Cell, hosts: Sequence[str], kind: OperationKind, jobs: int
) -> None:
    """Move everything off these hosts, ``jobs`` servers at a time; say how long it took."""
    dead = kind is OperationKind.EVACUATE
    began = time.monotonic()
    for host in hosts:
        if dead:
            cell.write(services.set_forced_down, host, AGENT_BINARY, True, cell.current_time())
        else:
            cell.write(services.set_disabled, host, AGENT_BINARY, True, "bench", cell.current_time())
    order = MoveOrder(kinds={HostCondition.DEAD if dead else HostCondition.UP: kind}, user_id="bench")
    emptier = Emptier(at.ledger, cell, order)
    count = emptier.count_bodies(hosts)
    remaining = Emptying(emptier, hosts, jobs=jobs).run()
    assert not remaining, remaining
    taken = time.monotonic() - began
    console.print(f"{title}: {count} servers in {taken:.1f} s, {count / taken:.0f} per second")


def main() -> None:
    options = parser_of(__doc__, "a few seconds; the figures mean nothing").parse_args()
    console = Console(width=160)
    hosts, count, batch_count = (8, 1, 1) if options.smoke else (48, 10, 50)
    with running_deployment(hosts, 0, DeploymentTimes(stats_interval=3600.0)) as bench, opened_operators(bench) as at:
        clock, _ = measure_idle(bench, 2.0 if options.smoke else 12.0)
        measure_cost(at, console, ACTIONS, count, clock)
        cell = next(cell for cell in at.registry.list_cells() if cell.name == "cell1")
        cell_hosts = sorted(at.registry.hosts_of(cell.uuid))
        for number in range(batch_count):
            bench.boot_servers(f"crowd-{number}-", 2 * len(cell_hosts))
        bench.wait("crowd-", batch_count * 2 * len(cell_hosts))
        empty_hosts(at, console, "drain of one host", cell, cell_hosts[:1], OperationKind.MIGRATE, 10)
        dead = cell_hosts[1:2] if options.smoke else cell_hosts[1:11]
        empty_hosts(at, console, f"evacuation of {len(dead)} hosts", cell, dead, OperationKind.EVACUATE, 1000)


if __name__ == "__main__":
    main()
