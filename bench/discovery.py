"""What it costs to map many new hosts: time, CPU and statements, by ``host discover`` and by a conductor that hears of them.

    python bench/discovery.py              10,000 hosts in two cells, on SQLite files
    python bench/discovery.py --smoke      a few hosts; figures not to be quoted

``--server mariadb|postgresql|sqlite``, ``--hosts N``, ``--cells N``. The databases are new ones on the server that tests use, and
are dropped at the end. ``conductor`` reads the feed that the hosts' first reports were told to, page by page, maps them and writes
what they offer. ``again`` is a second run, which finds nothing new. An executemany counts once.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from cells.cell import Cell
from conductor.context import ConductorContext
from objects.process import AGENT_BINARY

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sqlalchemy as sa

from bench import _ledger
from cells.administration import NewCell, create_cell
from cells.discovery import discover
from cells.registry import CellRegistry
from conductor.feed_follower import FeedFollower, FeedSettings
from db.api.claims.claims import Ledger
from db.api.deployment import host_mappings
from db.api.rows import epochs, tables
from db.cell import compute_nodes, services
from db.cell.services import Beat
from db.sql.connection import ApiTransaction
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from objects.compute_node import ComputeNode

MAPPING_PAGE_SIZE = 500


def fill(url: str, cell: int, hosts: int) -> None:
    """Agents that have reported once."""
    database = Database(url)
    nodes = [
        ComputeNode(host=name, node=name, vcpus=96, memory_mb=262144, disk_gb=8000)
        for name in (f"cell{cell}-host-{number:06}" for number in range(hosts))
    ]
    for start in range(0, len(nodes), MAPPING_PAGE_SIZE):
        page = nodes[start : start + MAPPING_PAGE_SIZE]
        database.write(services.heartbeats, [Beat(host=node.host, binary=AGENT_BINARY) for node in page])
        database.write(compute_nodes.store_all, page, time.time())
    database.dispose()


def forget(tx: ApiTransaction) -> None:
    """Nobody has mapped anything, nor read a feed."""
    for table in (tables.host_mappings, tables.inventories, tables.feed_cursors):
        tx.execute(sa.delete(table))
    epochs.bump(tx, epochs.Epoch.HOSTS)


def measure(what: str, databases: list[Database], work: Callable[[], object]) -> None:
    with StatementCounter(*databases) as counter:
        began, used = time.perf_counter(), time.process_time()
        work()
        took, cpu = time.perf_counter() - began, time.process_time() - used
    statements = sum(count.executions for count in counter.totals().values())
    rows = sum(count.rows for count in counter.totals().values())
    print(f"{what:20} {took:7.2f} s {cpu:7.2f} s CPU {statements:7} statements {rows:8} rows")


def _follower(api: Database, registry: CellRegistry, cell: Cell) -> FeedFollower:
    context = ConductorContext(Ledger(api, cell.name), registry)
    return FeedFollower(context, cell, FeedSettings(settle_age=3600.0, map_hosts=True))


def keep(keepers: list[FeedFollower], registry: CellRegistry) -> None:
    """Until all feeds are read and what was mapped is known."""
    for keeper in keepers:
        while keeper.keep():
            pass
        registry.refresh()
        keeper.keep()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few hosts on SQLite")
    parser.add_argument("--server", choices=("mariadb", "postgresql", "sqlite"), default="sqlite")
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--cells", type=int, default=2)
    told = parser.parse_args()
    hosts = told.hosts or (200 if told.smoke else 10_000)
    with contextlib.ExitStack() as stack:
        url, server = stack.enter_context(_ledger.database_on(told.server))
        api = Database(url)
        for cell in range(told.cells):
            cell_url, _ = stack.enter_context(_ledger.database_on(server, "cell"))
            bus = f"embedded://bench/discovery/{uuid.uuid4().hex[:8]}"
            create_cell(api, NewCell(name=f"cell{cell}", database_url=cell_url, transport_url=bus))
            fill(cell_url, cell, hosts // told.cells)
        registry = CellRegistry(api)
        databases = [api, *(cell.database for cell in registry.cells())]
        print(f"{hosts} hosts in {told.cells} cells on {server}")
        measure("discover", databases, lambda: discover(registry, api))
        measure("discover again", databases, lambda: discover(registry, api))
        assert len(api.read(host_mappings.list_all)) == hosts
        api.write(forget)
        registry.refresh()
        keepers = [_follower(api, registry, cell) for cell in registry.cells()]
        measure("conductor", databases, lambda: keep(keepers, registry))
        measure("conductor again", databases, lambda: keep(keepers, registry))
        assert len(api.read(host_mappings.list_all)) == hosts
        registry.close()
        api.dispose()


if __name__ == "__main__":
    main()
