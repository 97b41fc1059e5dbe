"""A fleet as it is in the middle of its life: hosts of four sizes in several cells and zones, 70 % full of mixed flavors."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Sequence

import msgspec

from objects import numa
from objects.aggregate import Aggregate
from objects.cell import CellMapping, CellState
from objects.compute_node import ComputeNode
from objects.flavor import Flavor
from objects.inventory import Inventory
from objects.numa import HostNumaNode
from scheduler.table.host_table import HostTable, ServiceReports
from service.garbage import without_garbage_collection

CELLS = 8
ZONES = ("north", "south", "east")
CORES = (16, 32, 48, 64)
"""Of each, 8 GiB of memory and 60 GiB of disk per core; vCPUs are two to a core."""
FILL_RATIO = 0.7
RACKS_PER_HOST = 10
HEARTBEATS_PAGE_SIZE, NODES_PAGE_SIZE = 2000, 5000
"""As ``scheduler/cell_reader.py`` enters them."""
_MIX = ((1, 2, 20), (1, 4, 16), (2, 4, 18), (2, 8, 14), (4, 8, 10), (4, 16, 10), (8, 16, 5), (8, 32, 4), (16, 32, 2), (16, 64, 1))

FLAVORS = tuple(
    Flavor(flavor_id=f"m{vcpus}.{gib}", name=f"m{vcpus}.{gib}", vcpus=vcpus, memory_mb=gib * 1024, root_gb=10 + 10 * vcpus)
    for vcpus, gib, _ in _MIX
)
_NUMBERS = {flavor.flavor_id: number for number, flavor in enumerate(FLAVORS)}
SHARES = tuple(share for *_, share in _MIX)
"""How often each of FLAVORS is asked for: of 100 servers."""


class Fleet:
    """A host table, and the ledger's rows behind it. The same one for the same number of hosts.

    ``racks``: so many aggregates more, ten of which each host is in.
    """

    def __init__(self, hosts: int, cells: int = CELLS, racks: int = 0) -> None:
        with without_garbage_collection():  # as a scheduler reads its fleet at its start
            self._build_fleet(hosts, cells, racks)

    def _build_fleet(self, hosts: int, cells: int, racks: int) -> None:
        self.chance = random.Random(hosts)
        self.nodes: list[ComputeNode] = []
        self.ledger: dict[int, Inventory] = {}
        self.cells = [f"00000000-0000-0000-0000-{n:012}" for n in range(cells)]
        self.ages = {f"cell{n}": 0.5 for n in range(cells)}
        self.table = HostTable()
        self._guests = array("q")  # of each: the host's key and the number of the flavor, as one number
        self._changed: set[int] = set()
        self.homes: dict[str, str] = {}
        self._hosts_of: dict[str, list[str]] = {cell: [] for cell in self.cells}
        for n in range(hosts):
            self._add_host(n)
        names = [node.host for node in self.nodes]
        aggregates = [
            Aggregate(id=n, name=zone, hosts=tuple(names[n :: len(ZONES)]), metadata={"availability_zone": zone})
            for n, zone in enumerate(ZONES)
        ]
        aggregates.append(Aggregate(id=8, name="ssd", hosts=tuple(names[::4]), metadata={"ssd": "true"}))
        aggregates.append(Aggregate(id=9, name="rented", hosts=tuple(names[::50]), metadata={"filter_tenant_id": "bank"}))
        aggregates += _rack_aggregates(names, racks)
        self.aggregates = tuple(aggregates)
        self.mappings = [
            CellMapping(uuid=uuid, name=f"cell{n}", database_url="", transport_url="", state=CellState.ENABLED)
            for n, uuid in enumerate(self.cells)
        ]
        self.zones = {name: ZONES[n % len(ZONES)] for n, name in enumerate(names)}
        self.table.set_topology(self.mappings, self.homes, self.zones, aggregates)
        rows = list(self.ledger.values())
        for start in range(0, hosts, NODES_PAGE_SIZE):
            self.table.set_inventories(rows[start : start + NODES_PAGE_SIZE], 0.0)
        nodes_of: dict[str, list[ComputeNode]] = {cell: [] for cell in self.cells}
        for node in self.nodes:
            nodes_of[self.homes[node.host]].append(node)
        for cell, cell_nodes in nodes_of.items():
            for start in range(0, len(cell_nodes), NODES_PAGE_SIZE):
                self.table.set_nodes(cell, cell_nodes[start : start + NODES_PAGE_SIZE])
        for cell in self.cells:
            self.report_hosts(cell)

    def _add_host(self, n: int) -> None:
        """One more host, with guests until a share of its vCPUs is taken that is ``FILL_RATIO`` on average."""
        chance, cores = self.chance, self.chance.choice(CORES)
        node = ComputeNode(
            host=f"compute-{n:06}",
            node=f"compute-{n:06}.example.org",
            vcpus=cores,
            memory_mb=cores * 8192,
            disk_gb=cores * 60,
            cpu_allocation_ratio=2.0,
        )
        room = node.total_capacity
        share = chance.uniform(2 * FILL_RATIO - 1, 1.0)
        vcpus = memory = disk = count = 0
        for number in chance.choices(range(len(FLAVORS)), SHARES, k=2 * max(CORES)):
            flavor = FLAVORS[number]
            if vcpus >= share * room.vcpus or vcpus + flavor.vcpus > room.vcpus or memory + flavor.memory_mb > room.memory_mb:
                break
            vcpus, memory, disk, count = vcpus + flavor.vcpus, memory + flavor.memory_mb, disk + flavor.disk_gb, count + 1
            self._guests.append((n + 1) * len(FLAVORS) + number)
        cell = self.cells[chance.randrange(len(self.cells))]
        self.homes[node.host] = cell
        self._hosts_of[cell].append(node.host)
        self.nodes.append(
            msgspec.structs.replace(node, vcpus_used=vcpus, memory_mb_used=memory, disk_gb_used=disk, running_vms=count)
        )
        self.ledger[n + 1] = Inventory(
            id=n + 1,
            host=node.host,
            node=node.node,
            cell_uuid=cell,
            generation=1,
            cap_vcpus=room.vcpus,
            cap_memory_mb=room.memory_mb,
            cap_disk_gb=room.disk_gb,
            used_vcpus=vcpus,
            used_memory_mb=memory,
            used_disk_gb=disk,
            instances=count,
        )

    def divide_hosts(self) -> None:
        """From now on each host has two NUMA nodes of equal size, and its guests are tied to them by halves."""
        for key, row in self.ledger.items():
            nodes = (HostNumaNode(vcpus=1, memory_mb=1),) * 2
            self.ledger[key] = msgspec.structs.replace(
                row,
                generation=row.generation + 1,
                cap_resources=numa.offered_by_class(nodes, row.cap_vcpus, row.cap_memory_mb),
                used_resources=_halved_resources(row.used_vcpus, row.used_memory_mb),
            )
        rows = list(self.ledger.values())
        for start in range(0, len(rows), NODES_PAGE_SIZE):
            self.table.set_inventories(rows[start : start + NODES_PAGE_SIZE], 0.0)

    @property
    def small_flavor(self) -> Flavor:
        return FLAVORS[0]

    def choose_flavor(self) -> Flavor:
        return self.chance.choices(FLAVORS, SHARES)[0]

    def add_guest(self, key: int, flavor: Flavor) -> Inventory:
        """The ledger's row with one more guest."""
        self._guests.append(key * len(FLAVORS) + _NUMBERS[flavor.flavor_id])
        return self._change_usage(key, flavor, 1)

    def release_guest(self) -> None:
        """Some guest is gone."""
        chosen = self.chance.randrange(len(self._guests))
        self._guests[chosen], self._guests[-1] = self._guests[-1], self._guests[chosen]
        key, number = divmod(self._guests.pop(), len(FLAVORS))
        self.table.set_inventory(self._change_usage(key, FLAVORS[number], -1), time.monotonic())

    def report_hosts(self, cell: str) -> None:
        """A heartbeat of every host of a cell, and reports of those where guests have come and gone."""
        now = time.monotonic()
        hosts = self._hosts_of[cell]
        for start in range(0, len(hosts), HEARTBEATS_PAGE_SIZE):
            self.table.set_services(cell, ServiceReports.same_for_all(hosts[start : start + HEARTBEATS_PAGE_SIZE], now))
        for key in [key for key in self._changed if self.ledger[key].cell_uuid == cell]:
            row = self.ledger[key]
            used = {"vcpus_used": row.used_vcpus, "memory_mb_used": row.used_memory_mb, "disk_gb_used": row.used_disk_gb}
            node = msgspec.structs.replace(self.nodes[key - 1], running_vms=row.instances, **used)
            self.table.set_nodes(cell, [node])
            self._changed.remove(key)

    def _change_usage(self, key: int, flavor: Flavor, count: int) -> Inventory:
        row = self.ledger[key]
        vcpus, memory_mb = row.used_vcpus + count * flavor.vcpus, row.used_memory_mb + count * flavor.memory_mb
        self._changed.add(key)
        self.ledger[key] = msgspec.structs.replace(
            row,
            generation=row.generation + 1,
            used_vcpus=vcpus,
            used_memory_mb=memory_mb,
            used_disk_gb=row.used_disk_gb + count * flavor.disk_gb,
            instances=row.instances + count,
            used_resources=_halved_resources(vcpus, memory_mb) if row.cap_resources else {},
        )
        return self.ledger[key]


def _halved_resources(vcpus: int, memory_mb: int) -> dict[str, int]:
    """These amounts by halves, on two NUMA nodes."""
    return numa.taken_by_class((0, 1), vcpus, memory_mb)


def _rack_aggregates(names: Sequence[str], count: int) -> list[Aggregate]:
    """``count`` aggregates with a key of their own for each ten; every host is in ten of them, one of each kind."""
    if not count:
        return []
    hosts: list[list[str]] = [[] for _ in range(count)]
    places = random.Random(count)
    for name in names:
        for kind in range(RACKS_PER_HOST):
            hosts[places.randrange(count // RACKS_PER_HOST) * RACKS_PER_HOST + kind].append(name)
    return [
        Aggregate(id=100 + n, name=f"rack{n}", hosts=tuple(within), metadata={f"rack{n % RACKS_PER_HOST}": str(n)})
        for n, within in enumerate(hosts)
    ]
