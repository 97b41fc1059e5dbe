"""How much memory the host table of a scheduler takes, and how long it takes to fill, without databases.

``python bench/table_memory.py [--hosts 1000000]``. Rows are made page by page, as a scheduler reads them at its start, and are
forgotten once they are entered. Memory is what the process holds (resident, from ``/proc/self/status``) beyond what it held at
first.
``--smoke`` takes a few hosts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))  # last, so that what is installed comes first

from bench._fleet import HEARTBEATS_PAGE_SIZE, NODES_PAGE_SIZE
from bench._script import parser_of
from objects.cell import CellMapping, CellState
from objects.compute_node import ComputeNode
from objects.inventory import Inventory
from scheduler.table.host_table import HostTable, ServiceReports
from service.garbage import without_garbage_collection

CELLS = 8


def resident_mib() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def build_node(n: int) -> ComputeNode:
    return ComputeNode(
        host=f"compute-{n:07}",
        node=f"compute-{n:07}.example.org",
        vcpus=32,
        memory_mb=262144,
        disk_gb=1920,
        cpu_allocation_ratio=2.0,
        vcpus_used=32,
        memory_mb_used=65536,
        disk_gb_used=320,
        running_vms=8,
    )


def build_inventory(n: int, cell: str) -> Inventory:
    one = build_node(n)
    return Inventory(
        id=n + 1,
        host=one.host,
        node=one.node,
        cell_uuid=cell,
        generation=1,
        cap_vcpus=one.total_capacity.vcpus,
        cap_memory_mb=one.total_capacity.memory_mb,
        cap_disk_gb=one.total_capacity.disk_gb,
        used_vcpus=one.vcpus_used,
        used_memory_mb=one.memory_mb_used,
        used_disk_gb=one.disk_gb_used,
        instances=one.running_vms,
    )


def split_pages(numbers: range, size: int) -> Iterable[range]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


class Filling:
    """A table that is filled step by step, as ``scheduler/table_updater.py`` and ``scheduler/cell_reader.py`` do it."""

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
        self.table = HostTable()
        self.cells = [f"00000000-0000-0000-0000-{n:012}" for n in range(CELLS)]

    @property
    def named_steps(self) -> Sequence[tuple[str, Callable[[], None]]]:
        return [
            ("mappings", self.map_hosts),
            ("ledger", self.enter_inventories),
            ("nodes", self.enter_nodes),
            ("heartbeats", self.enter_heartbeats),
        ]

    def map_hosts(self) -> None:
        mappings = [
            CellMapping(uuid=uuid, name=f"cell{n}", database_url="", transport_url="", state=CellState.ENABLED)
            for n, uuid in enumerate(self.cells)
        ]
        homes = {f"compute-{n:07}": self.cells[n % CELLS] for n in range(self.hosts)}
        self.table.set_topology(mappings, homes, {})

    def enter_inventories(self) -> None:
        for page in split_pages(range(self.hosts), NODES_PAGE_SIZE):
            self.table.set_inventories([build_inventory(n, self.cells[n % CELLS]) for n in page], 0.0)

    def enter_nodes(self) -> None:
        for number, cell in enumerate(self.cells):
            for page in split_pages(range(number, self.hosts, CELLS), NODES_PAGE_SIZE):
                self.table.set_nodes(cell, [build_node(n) for n in page])

    def enter_heartbeats(self) -> None:
        now = time.monotonic()
        for number, cell in enumerate(self.cells):
            for page in split_pages(range(number, self.hosts, CELLS), HEARTBEATS_PAGE_SIZE):
                self.table.set_services(cell, ServiceReports.same_for_all([f"compute-{n:07}" for n in page], now))


def main() -> None:
    parser = parser_of(__doc__, "a few hosts: does it still work?")
    parser.add_argument("--hosts", type=int, default=1_000_000)
    options = parser.parse_args()
    hosts = 300 if options.smoke else options.hosts
    before, filling = resident_mib(), Filling(hosts)
    print(f"{hosts:,} hosts, of which the rows that are read are made here, too")
    with without_garbage_collection():  # as a scheduler reads its fleet at its start
        for name, step in filling.named_steps:
            began = time.process_time()
            step()
            print(f"{name:12} {time.process_time() - began:>6.1f} s of CPU {resident_mib() - before:>8.0f} MiB so far", flush=True)
    if len(filling.table) != hosts or not filling.table.eligible[:hosts].all():
        raise SystemExit("some hosts may not be chosen")
    print(f"{(resident_mib() - before) * 2**20 / hosts:.0f} bytes a host")


if __name__ == "__main__":
    main()
