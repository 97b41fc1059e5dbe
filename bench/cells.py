"""What many cells cost an operator: the health of all of them while some are down, and how fast a disabled cell is out of use.

    python bench/cells.py            100 cells with 20 hosts each, on SQLite and MariaDB
    python bench/cells.py --smoke    a few cells on SQLite; figures not to be quoted

``--server mariadb|postgresql|sqlite``, ``--cells N``, ``--down N`` (may be repeated), ``--timeout SECONDS``. A cell that is down
accepts connections and never answers, the worst there is: a closed port is known at once. The databases are new ones on the server
that tests use, which must allow a connection for each cell: ``SC_TEST_MYSQL_URL=own python ci/servers.py python bench/cells.py``
starts one that does. The health is what ``cell list --health`` does, with new connections each time, buses inside the process.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from bench import _ledger
from bench._script import parser_of
from cells import health
from cells.administration import CellChange, NewCell, change_cell, create_cell
from cells.bulkhead import BulkheadSettings
from cells.opts import RegistrySettings
from cells.registry import CellRegistry
from db.api.claims import claims
from db.api.deployment import cell_mappings, host_mappings
from db.cell import compute_nodes, services
from db.sql.engine import ApiDatabase, Database
from objects import errors
from objects.cell import CellMapping, CellState, HostMapping
from objects.process import AGENT_BINARY
from scheduler.claim.cursor import Cursor
from scheduler.framework.settings import SchedulerSettings
from scheduler.manager import SchedulerManager
from scheduler.plugins import load_driver
from scheduler.table.host_table import HostTable
from scheduler.table_updater import TableUpdater
from tests.support import fleet
from tests.support.bus import silent_listener
from tests.support.fleet import CONTEXT, Site

HOSTS = 20
"""Of every cell."""


def main() -> None:
    parser = parser_of(__doc__, "a few cells on SQLite")
    parser.add_argument("--server", choices=("mariadb", "postgresql", "sqlite"))
    parser.add_argument("--cells", type=int)
    parser.add_argument("--down", type=int, action="append")
    parser.add_argument("--timeout", type=float)
    options = parser.parse_args()
    count = options.cells or (4 if options.smoke else 100)
    patience = BulkheadSettings(timeout=options.timeout or (0.5 if options.smoke else 10.0))
    servers = [options.server] if options.server else ["sqlite"] if options.smoke else ["sqlite", "mariadb"]
    for server in servers:
        with running_region(server, count) as (api, mappings):
            for down in options.down or ((0, 1) if options.smoke else (0, 1, 10)):
                measure_health(api, mappings, down, patience)
            measure_disable(api, mappings, rounds=2 if options.smoke else 20)


@contextlib.contextmanager
def running_region(server: str, count: int) -> Iterator[tuple[Database, list[CellMapping]]]:
    """An API database, and cells whose agents have just reported."""
    with contextlib.ExitStack() as stack:
        url, server = stack.enter_context(_ledger.database_on(server))
        api = Database(url, name="api", max_pool_size=12)
        stack.callback(api.dispose_connections)
        mappings = [
            _add_cell(api, f"cell{n:03}", stack.enter_context(_ledger.database_on(server, "cell"))[0]) for n in range(count)
        ]
        print(f"{count} cells with {HOSTS} hosts each, {server}")
        yield api, mappings


def _add_cell(api: ApiDatabase, name: str, url: str) -> CellMapping:
    mapping = create_cell(api, NewCell(name=name, database_url=url, transport_url=f"embedded://bench/cells/{name}"))
    nodes = [fleet.node(f"{name}-h{n}", vcpus=100_000, memory_mb=1 << 30, disk_gb=1 << 20) for n in range(HOSTS)]
    database, now = Database(url), time.time()
    database.write(services.record_heartbeats, [services.Beat(host=node.host, binary=AGENT_BINARY) for node in nodes], now + 3600)
    for node in nodes:
        database.write(compute_nodes.store_node, node, now)
    database.dispose_connections()
    claims.Ledger(api, f"conductor of {name}").write(claims.set_inventory, nodes, mapping.uuid)
    api.write(host_mappings.add_mappings, [HostMapping(host=node.host, cell_uuid=mapping.uuid) for node in nodes], now)
    return mapping


def measure_health(api: ApiDatabase, mappings: Sequence[CellMapping], down: int, patience: BulkheadSettings, runs: int = 3) -> None:
    """Print how long it takes, how long the cells that answer took, and what it takes of this process."""
    with contextlib.closing(silent_listener()) as frozen:
        url = f"mysql+pymysql://sc@127.0.0.1:{frozen.getsockname()[1]}/sc?connect_timeout=3600"
        before = [api.read(cell_mappings.get, mapping.uuid) for mapping in mappings[:down]]
        for mapping in before:
            api.write(cell_mappings.update_mapping, msgspec.structs.replace(mapping, database_url=url))
        took: list[float] = []
        cpu: list[float] = []
        for _ in range(runs):
            began, used = time.monotonic(), time.process_time()
            registry = CellRegistry(api, RegistrySettings(bulkhead=patience))
            cell_healths = health.look_at_cells(registry.list_cells(), 60.0)
            took.append(time.monotonic() - began)
            cpu.append(time.process_time() - used)
            threads = threading.active_count()
            registry.close()
        for mapping in before:
            now = api.read(cell_mappings.get, mapping.uuid)
            api.write(cell_mappings.update_mapping, msgspec.structs.replace(mapping, epoch=now.epoch))
    answered = sorted(entry.database.seconds for entry in cell_healths if entry.database.seconds is not None)
    assert len(answered) == len(mappings) - down, [entry.database.trouble for entry in cell_healths]
    print(
        f"  {down:3} down: {min(took):.2f} s ({', '.join(f'{entry:.2f}' for entry in took)}), of CPU {min(cpu):.2f} s;"
        f" a cell that answers: median {statistics.median(answered) * 1000:.0f} ms, last {answered[-1] * 1000:.0f} ms;"
        f" {threads} threads, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most"
    )


def measure_disable(api: ApiDatabase, mappings: Sequence[CellMapping], rounds: int) -> None:
    """Two threads ask for hosts all the time, while an operator takes one of two cells out of use and puts it back."""
    for mapping in mappings[2:]:
        change_cell(api, mapping.name, CellChange(state=CellState.DISABLED))
    name = mappings[0].name
    settings = SchedulerSettings(service_down_time=1e6, warm_up=0.0)
    site = Site(api, [])
    registry = CellRegistry(api)
    table, cursor = HostTable(), Cursor()
    freshness = TableUpdater(settings, registry, api, table, cursor)
    freshness.start()
    ledger = claims.Ledger(api, "bench")
    scheduler = SchedulerManager(settings, load_driver(settings), table, cursor, ledger, freshness)
    uuid, ended = mappings[0].uuid, threading.Event()
    chosen: list[tuple[float, float, str]] = []

    def choose_hosts() -> None:
        while not ended.is_set():
            spec, began = site.leased(fleet.spec()), time.monotonic()
            with contextlib.suppress(errors.Conflict):
                [[selection, *_]] = scheduler.select_destinations(CONTEXT, spec, list(spec.fences))
                chosen.append((began, time.monotonic(), selection.cell_uuid))

    threads = [threading.Thread(target=choose_hosts) for _ in range(2)]
    for thread in threads:
        thread.start()
    committed: list[tuple[float, float]] = []
    for _ in range(rounds):
        time.sleep(0.3)  # some choose the cell
        change_cell(api, name, CellChange(state=CellState.DISABLED))
        off = time.monotonic()
        time.sleep(0.3)  # nobody should, once all have heard
        committed.append((off, time.monotonic()))
        change_cell(api, name, CellChange(state=CellState.ENABLED))
    ended.set()
    for thread in threads:
        thread.join()
    freshness.stop()
    registry.close()
    late = [[at - off for _, at, cell in chosen if cell == uuid and off < at < on] for off, on in committed]
    after = sum(1 for off, on in committed for began, at, cell in chosen if cell == uuid and off < began and at < on)
    slowest = max((max(times) for times in late if times), default=0.0)
    print(
        f"  cell disabled {rounds} times among {len(chosen)} selections, {sum(cell == uuid for *_, cell in chosen)} of them in it:"
        f" {after} of those asked for after the commit were;"
        f" the last answer with it came {slowest * 1000:.1f} ms after the commit at most"
    )


if __name__ == "__main__":
    main()
