"""How long a scheduler takes from its start to its first decision, and how much memory, on a large fleet that is in use.

    python bench/fleet_start.py            100,000 hosts in two cells, 1,000,000 allocations, on MariaDB (filling takes minutes)
    python bench/fleet_start.py --smoke    a few hosts on SQLite; figures not to be quoted

``--server mariadb|postgresql|sqlite``, ``--hosts N``, ``--allocations N``, ``--cells N``, ``--runs N``. The databases are new ones
on the server that tests use, filled beforehand, and are dropped at the end. Each run is a process of its own, which starts the
service as ``superconductor-scheduler`` does, with a bus inside it, and asks for one server. Time counts from the start of that
process, so with all imports; memory is what the process itself holds and held at most (resident, from ``/proc/self/status``) once
it has decided and has read all cells. No agent reports meanwhile: what their signs of life cost, ``bench/cliffs.py`` measures.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sqlalchemy as sa

from bench import _ledger
from bench._script import parser_of
from cells.administration import NewCell, create_cell
from db.api.claims import claims
from db.api.rows.epochs import Epoch, bump_epoch
from db.api.rows.tables import host_mappings
from db.cell.tables import compute_nodes, services
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase, Database
from objects import stored
from objects.compute_node import ComputeNode
from objects.process import AGENT_BINARY
from tests.support import fleet

SCHEDULER = Path(__file__).with_name("_scheduler.py")


def fill_databases(api: ApiDatabase, cell_urls: list[str], hosts: int, allocations: int) -> None:
    """Cells, their nodes and agents, mappings, inventories and claims, as if all had been running for long."""
    for number, url in enumerate(cell_urls):
        name = f"cell{number + 1}"
        cell = create_cell(api, NewCell(name=name, database_url=url, transport_url=f"embedded://bench/fleet-start/{name}"))
        cell_nodes = [build_node(number, n) for n in range(hosts // len(cell_urls))]
        ledger = claims.Ledger(api, f"conductor of {name}")
        for start in range(0, len(cell_nodes), _ledger.INSERT_PAGE_SIZE):
            ledger.write(claims.set_inventory, cell_nodes[start : start + _ledger.INSERT_PAGE_SIZE], cell.uuid)
        rows = [{"host": compute_node.host, "cell_uuid": cell.uuid, "created_at": time.time()} for compute_node in cell_nodes]
        api.write(_ledger.insert_rows, host_mappings, rows)
        database = Database(url)
        database.write(insert_reports, cell_nodes)
        database.dispose_connections()
    api.write(bump_epoch, Epoch.HOSTS)
    claim_count = _ledger.fill_hosts(api, allocations * statistics.mean(f.vcpus for f in _ledger.FLAVORS) / (hosts * 96))
    print(f"{hosts} hosts in {len(cell_urls)} cells, {claim_count} allocations")


def build_node(cell: int, number: int) -> ComputeNode:
    """A host of one of four kinds, with what a driver reports of it. Nothing runs on it but what is claimed."""
    attributes = {"rack": f"r{cell}-{number // 40}", "cpu_arch": "x86_64", "traits": ["HW_CPU_X86_AVX2", "STORAGE_DISK_SSD"]}
    return ComputeNode(
        host=f"cell{cell + 1}-host-{number:06}",
        node=f"cell{cell + 1}-host-{number:06}",
        vcpus=96,
        memory_mb=(1 + number % 4) * 262144,
        disk_gb=8000,
        cpu_allocation_ratio=1.0,
        hypervisor_type="QEMU",
        hypervisor_version=8002000,
        attributes=attributes,
    )


def insert_reports(tx: ApiTransaction, nodes: list[ComputeNode]) -> None:
    now = time.time()
    rows: list[dict[str, Any]] = [{"host": n.host, "node": n.node, "stats": stored.dump_value(n), "updated_at": now} for n in nodes]
    _ledger.insert_rows(tx, compute_nodes, rows)
    agents = [{"uuid": str(uuid.uuid4()), "host": n.host, "binary": AGENT_BINARY, "last_seen": now} for n in nodes]
    _ledger.insert_rows(tx, services, agents)


def main() -> None:
    parser = parser_of(__doc__, "a few hosts on SQLite")
    parser.add_argument("--server", choices=("mariadb", "postgresql", "sqlite"))
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--allocations", type=int)
    parser.add_argument("--cells", type=int, default=2)
    parser.add_argument("--runs", type=int)
    options = parser.parse_args()
    hosts = options.hosts or (200 if options.smoke else 100_000)
    with contextlib.ExitStack() as stack:
        server = options.server or ("sqlite" if options.smoke else "mariadb")
        url, server = stack.enter_context(_ledger.database_on(server))
        cell_urls = [stack.enter_context(_ledger.database_on(server, "cell"))[0] for _ in range(options.cells)]
        api = Database(url)
        fill_databases(api, cell_urls, hosts, options.allocations or 10 * hosts)
        if server == "postgresql":
            for database_url in (url, *cell_urls):
                Database(database_url).write(lambda tx: tx.execute(sa.text("ANALYZE")))
        print(server)
        for _ in range(options.runs or (1 if options.smoke else 3)):
            [spec] = _ledger.lease_requests(api, 1, [fleet.flavor(2, 4096, 40)])
            subprocess.run([sys.executable, SCHEDULER, url, stored.dump_value(spec)], check=True)
        api.dispose_connections()


if __name__ == "__main__":
    main()
