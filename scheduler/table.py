"""The fleet in a table: one column per attribute, one row per ``(host, node)`` of every cell. Pure memory, no I/O."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from objects.cell import CellMapping, CellState
from objects.compute_node import ComputeNode
from objects.inventory import Inventory
from scheduler.arrays import Ints, mixed
from scheduler.columns import Columns

LOG = logging.getLogger(__name__)

SETTLED = 30.0
"""Seconds without a change of a host's claims after which the agent's count is compared with them again."""


class HostTable(Columns):
    """Columns, the indexes into them, and the changes they take. Every use, reading or writing, is under ``lock``.

    A row comes into being with the first word about its host, from a cell or from the ledger of claims; it may be chosen once both
    have spoken and the host is mapped to the cell that reports it.
    """

    def __init__(self, default_zone: str = "nova") -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.hosts: list[str] = []
        self.nodes: list[str] = []
        self.cells: list[CellMapping] = []
        self.zones: list[str] = [default_zone]
        self.rows_of: dict[str, list[int]] = {}
        self._row: dict[tuple[str, str], int] = {}
        self._row_of_inventory: dict[int, int] = {}
        self._free: list[int] = []
        self._cell_index: dict[str, int] = {}
        self._zone_index: dict[str, int] = {default_zone: 0}
        self._home: Mapping[str, str] = {}
        self._zone_of: Mapping[str, str] = {}
        self._taken: list[tuple[int, float, float, float, int]] = []

    def __len__(self) -> int:
        """Hosts that cells report."""
        return int(np.count_nonzero(self.cell[: self.size] >= 0))

    # -- rows --------------------------------------------------------------------------------------------------------------

    def find(self, host: str, node: str) -> int | None:
        return self._row.get((host, node))

    def find_inventory(self, inventory_id: int) -> int | None:
        return self._row_of_inventory.get(inventory_id)

    def unheard(self, host: str, node: str) -> bool:
        """Nobody has told of this node's agent yet."""
        row = self._row.get((host, node))
        return row is None or bool(self.heard_at[row] == -np.inf)

    def remove(self, row: int) -> None:
        """Forget a host; its row goes to the next newcomer."""
        del self._row[self.hosts[row], self.nodes[row]]
        siblings = self.rows_of[self.hosts[row].lower()]
        siblings.remove(row)
        if not siblings:
            del self.rows_of[self.hosts[row].lower()]
        self._row_of_inventory.pop(int(self.inventory[row]), None)
        self.clear(row)
        self._free.append(row)

    def _ensure(self, host: str, node: str) -> int:
        row = self._row.get((host, node))
        if row is not None:
            return row
        if self._free:
            row = self._free.pop()
            self.hosts[row], self.nodes[row] = host, node
        else:
            row = self.append()
            self.hosts.append(host)
            self.nodes.append(node)
        self._row[host, node] = row
        self.rows_of.setdefault(host.lower(), []).append(row)
        self._place(row)
        return row

    # -- what the cells say --------------------------------------------------------------------------------------------------

    def set_node(self, cell_uuid: str, node: ComputeNode) -> None:
        """What a cell knows of one of its nodes. A host that reports from a cell it is not mapped to does not displace itself."""
        row = self._ensure(node.host, node.node)
        cell = self._number(cell_uuid)
        if self.cell[row] not in (-1, cell) and self._home.get(node.host) != cell_uuid:
            LOG.warning("host %s reports from cell %s, but belongs to another: ignored", node.host, cell_uuid)
            return
        self.cell[row] = cell
        self.reported_vcpus[row] = node.vcpus_used
        self.reported_memory_mb[row] = node.memory_mb_used
        self.reported_disk_gb[row] = node.disk_gb_used
        self.failed_builds[row] = node.failed_builds
        self.hypervisor_version[row] = node.hypervisor_version
        self._account(row)
        self._judge(row)

    def keep_nodes(self, cell_uuid: str, nodes: Collection[tuple[str, str]]) -> None:
        """A cell was read anew: it has these nodes and no others. What the ledger says of others is kept: they may return."""
        cell = self._number(cell_uuid)
        for row in np.flatnonzero(self.cell[: self.size] == cell).tolist():
            if (self.hosts[row], self.nodes[row]) in nodes:
                continue
            if self.inventory[row]:
                self.cell[row] = -1
                self.heard_at[row] = -np.inf
                self._judge(row)
            else:
                self.remove(row)

    def set_service(self, cell_uuid: str, host: str, heard_at: float, *, disabled: bool, forced_down: bool) -> None:
        """When the host's agent was last heard of, by our monotonic clock, and what operators said of it."""
        cell = self._number(cell_uuid)
        for row in self.rows_of.get(host.lower(), ()):
            if self.cell[row] == cell:
                self.heard_at[row] = heard_at
                self.disabled[row] = disabled
                self.forced_down[row] = forced_down
                self._judge(row)

    # -- what the ledger says --------------------------------------------------------------------------------------------------

    def set_inventory(self, inventory: Inventory, now: float) -> None:
        """A row of the ledger, unless a newer one is known already. ``now``: the monotonic clock."""
        row = self._row_of_inventory.get(inventory.id)
        if row is None:
            row = self._ensure(inventory.host, inventory.node)
            self._row_of_inventory.pop(int(self.inventory[row]), None)
            self._row_of_inventory[inventory.id] = row
            self.inventory[row] = inventory.id
            self.generation[row] = -1
            self.salt[row] = mixed(inventory.id)
            self._judge(row)
        if inventory.generation <= self.generation[row]:
            return
        first = self.generation[row] < 0
        self.generation[row] = inventory.generation
        self.cap_vcpus[row] = inventory.cap_vcpus
        self.cap_memory_mb[row] = inventory.cap_memory_mb
        self.cap_disk_gb[row] = inventory.cap_disk_gb
        self.claimed_vcpus[row] = inventory.used_vcpus
        self.claimed_memory_mb[row] = inventory.used_memory_mb
        self.claimed_disk_gb[row] = inventory.used_disk_gb
        self.instances[row] = inventory.instances
        self.changed_at[row] = now
        if first:
            self._account(row)
        else:
            self._recount(row)

    def settle(self, now: float) -> None:
        """Compare agents' counts with the claims again where these have been quiet.

        Between a claim, a move or a release and the agent's next report the two differ for a while, and either way round: so the
        difference is taken as it is when a report comes, and taken anew once nothing has moved for a while.
        """
        quiet = np.flatnonzero(self.changed_at[: self.size] < now - SETTLED)
        for what in ("vcpus", "memory_mb", "disk_gb"):
            reported, claimed = getattr(self, f"reported_{what}"), getattr(self, f"claimed_{what}")
            beyond = np.maximum(reported[quiet] - claimed[quiet], 0.0)
            getattr(self, f"unaccounted_{what}")[quiet] = beyond
            getattr(self, f"free_{what}")[quiet] = getattr(self, f"cap_{what}")[quiet] - claimed[quiet] - beyond

    def _account(self, row: int) -> None:
        self.unaccounted_vcpus[row] = max(0.0, self.reported_vcpus[row] - self.claimed_vcpus[row])
        self.unaccounted_memory_mb[row] = max(0.0, self.reported_memory_mb[row] - self.claimed_memory_mb[row])
        self.unaccounted_disk_gb[row] = max(0.0, self.reported_disk_gb[row] - self.claimed_disk_gb[row])
        self._recount(row)

    def _recount(self, row: int) -> None:
        self.free_vcpus[row] = self.cap_vcpus[row] - self.claimed_vcpus[row] - self.unaccounted_vcpus[row]
        self.free_memory_mb[row] = self.cap_memory_mb[row] - self.claimed_memory_mb[row] - self.unaccounted_memory_mb[row]
        self.free_disk_gb[row] = self.cap_disk_gb[row] - self.claimed_disk_gb[row] - self.unaccounted_disk_gb[row]

    # -- what operators say ----------------------------------------------------------------------------------------------------

    def set_topology(self, cells: Iterable[CellMapping], homes: Mapping[str, str], zones: Mapping[str, str]) -> None:
        """Cells and their states, the host mappings (host -> cell uuid) and the zones (host -> name)."""
        for mapping in cells:
            self.cells[self._number(mapping.uuid)] = mapping
        self._home, self._zone_of = homes, zones
        for row in self._row.values():
            self._place(row)

    def zone_number(self, name: str) -> int:
        """-1 for a zone that no host was ever in."""
        return self._zone_index.get(name, -1)

    def cell_number(self, uuid: str) -> int:
        """-1 for a cell never heard of."""
        return self._cell_index.get(uuid, -1)

    def _number(self, cell_uuid: str) -> int:
        if cell_uuid not in self._cell_index:
            self._cell_index[cell_uuid] = len(self.cells)
            self.cells.append(
                CellMapping(uuid=cell_uuid, name=cell_uuid, database_url="", transport_url="", state=CellState.DISABLED)
            )
        return self._cell_index[cell_uuid]

    def _place(self, row: int) -> None:
        home = self._home.get(self.hosts[row])
        zone = self._zone_of.get(self.hosts[row])
        self.home[row] = -1 if home is None else self._number(home)
        self.zone[row] = 0 if zone is None else self._zone_index.setdefault(zone, len(self._zone_index))
        if len(self._zone_index) > len(self.zones):
            self.zones.append(zone or "")
        self._judge(row)

    def _judge(self, row: int) -> None:
        home = int(self.home[row])
        self.cell_open[row] = home >= 0 and self.cells[home].state is CellState.ENABLED
        at_home = home >= 0 and home == self.cell[row]
        self.eligible[row] = at_home and self.inventory[row] > 0 and not self.forced_down[row]

    # -- what a plan takes -------------------------------------------------------------------------------------------------------

    @contextmanager
    def tentative(self) -> Iterator[None]:
        """Whatever ``take`` took inside is given back at the end, exactly."""
        mark = len(self._taken)
        try:
            yield
        finally:
            self.give_back(mark)

    @property
    def mark(self) -> int:
        """A point to ``give_back`` to."""
        return len(self._taken)

    def take(self, row: int, vcpus: int, memory_mb: int, disk_gb: int) -> None:
        """One more instance on the row, as far as this plan is concerned."""
        old = (
            row,
            float(self.free_vcpus[row]),
            float(self.free_memory_mb[row]),
            float(self.free_disk_gb[row]),
            int(self.instances[row]),
        )
        self._taken.append(old)
        self.free_vcpus[row] -= vcpus
        self.free_memory_mb[row] -= memory_mb
        self.free_disk_gb[row] -= disk_gb
        self.instances[row] += 1

    def give_back(self, mark: int) -> None:
        while len(self._taken) > mark:
            row, *free, instances = self._taken.pop()
            self.free_vcpus[row], self.free_memory_mb[row], self.free_disk_gb[row] = free
            self.instances[row] = instances

    def rows(self, inventory_ids: Iterable[int]) -> Ints:
        """The rows of these inventories, as far as there are any."""
        found = (self._row_of_inventory.get(inventory) for inventory in inventory_ids)
        return np.fromiter((row for row in found if row is not None), dtype=np.int64)
