"""The fleet in a table: one column per attribute, one row per ``(host, node)`` of every cell. Pure memory, no I/O."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from objects.aggregate import Aggregate
from objects.cell import CellMapping
from objects.compute_node import ComputeNode
from objects.inventory import Inventory, InventoryColumns
from scheduler.table.address import halves_of
from scheduler.table.aggregation import Aggregates
from scheduler.table.arrays import Floats, Ints, Mask, all_mixed, attribute_column
from scheduler.table.columns import Columns
from scheduler.table.dictionary_column import DictionaryColumns
from scheduler.table.host_name_conflicts import HostNameConflicts
from scheduler.table.named_rows import NamedRows, lower_names
from scheduler.table.resource_classes import NONE
from scheduler.table.tentative_claims import TentativeClaims
from scheduler.table.topology import Layout, Topology

LAYOUT_PAGE_SIZE = 2000
"""Number of hosts that are placed in one hold of the lock after operators have changed mappings, zones or aggregates."""
LATER_ROWS, LATER_ROWS_PART = 64, 64
"""So many rows, and one for so many there are, may come or change their cell before rows are sorted by cell again."""
_AMOUNTS = ("vcpus", "memory_mb", "disk_gb")
_RATIOS = {"ratio_vcpus": "cpu", "ratio_memory_mb": "ram", "ratio_disk_gb": "disk"}
_OF_NODES = (
    {f"reported_{resource}": f"{resource}_used" for resource in _AMOUNTS}
    | {name: f"{resource}_allocation_ratio" for name, resource in _RATIOS.items()}
    | {"failed_builds": "failed_builds", "hypervisor_version": "hypervisor_version", "guests": "running_vms"}
)
_OF_INVENTORIES = (
    {f"cap_{resource}": f"cap_{resource}" for resource in _AMOUNTS}
    | {f"claimed_{resource}": f"used_{resource}" for resource in _AMOUNTS}
    | {"generation": "generation", "instances": "instances"}
)
"""Columns, and the attributes of records that they are taken from."""


class ServiceReports(NamedTuple):
    """When the agents of ``hosts`` were last heard of (monotonic clock; -inf: one is down), and what operators said of them."""

    hosts: Sequence[str]
    heard_at: Floats
    disabled: Mask
    forced_down: Mask

    @classmethod
    def same_for_all(cls, hosts: Sequence[str], heard_at: float) -> ServiceReports:
        """All were heard of at the same time, and operators have said nothing of them."""
        no: Mask = np.zeros(len(hosts), np.bool_)
        return cls(hosts, np.full(len(hosts), heard_at), no, no)

    def slice_from(self, start: int, size: int) -> ServiceReports:
        """So many of them, from this one on."""
        slice_of_hosts = slice(start, start + size)
        return ServiceReports(
            self.hosts[slice_of_hosts],
            self.heard_at[slice_of_hosts],
            self.disabled[slice_of_hosts],
            self.forced_down[slice_of_hosts],
        )


class RowsByCell:
    """``rows``: all of a table, sorted by the number of their cell. ``places``: where each row is among them.

    Rows that come later have the places after these, up to ``room``. ``mixed``: cells that rows have joined or left since.
    """

    def __init__(self, cells: Ints) -> None:
        self.room = cells.size + cells.size // LATER_ROWS_PART + LATER_ROWS
        self.rows = np.arange(self.room)
        self.rows[: cells.size] = cells.argsort(kind="stable")
        self.places = np.arange(self.room)
        self.places[self.rows] = np.arange(self.room)
        # where the rows of each cell begin, from those of no cell (-1) on; with their end
        self._starts = np.searchsorted(cells[self.rows[: cells.size]], np.arange(-1, int(cells.max(initial=-1)) + 2))
        self.mixed: set[int] = set()
        self._moves_left = self.room - cells.size

    def span_of(self, cell: int) -> tuple[int, int]:
        """The places from the first to before the second are the cell's, unless it is ``mixed``."""
        if cell + 2 >= self._starts.size:
            return 0, 0
        return self._starts.item(cell + 1), self._starts.item(cell + 2)

    def move_rows(self, cells: Ints, cell: int) -> bool:
        """Rows of these cells are now of another one. False: so many have moved that it is to be sorted again."""
        self._moves_left -= cells.size
        self.mixed.update(cells.tolist(), (cell,))
        return self._moves_left >= 0


class RowsByRack:
    """The racks of all rows of a table. ``racks``: by row; -1: in none, or in several."""

    def __init__(self, aggregation: Ints, of_combinations: Ints) -> None:
        """``of_combinations``: the rack of each combination of aggregates."""
        self.of_combinations = of_combinations
        self.racks: Ints = of_combinations[aggregation]
        self._order: Ints | None = None

    def rows_of(self, racks: Iterable[int]) -> Ints:
        """The rows of these racks, rack after rack. -1: those that are in none."""
        if self._order is None:
            small = int(self.of_combinations.max(initial=0)) < np.iinfo(np.int16).max
            self._order = (self.racks.astype(np.int16) if small else self.racks).argsort(kind="stable")
            self._starts = self.racks[self._order].searchsorted(np.arange(-1, self.of_combinations.max(initial=-1) + 2)).tolist()
        order, starts = self._order, self._starts
        rows_by_rack = [order[starts[rack + 1] : starts[rack + 2]] for rack in racks]
        return np.concatenate(rows_by_rack) if rows_by_rack else np.zeros(0, np.int64)


class _UpHosts(NamedTuple):
    """Hosts that are enabled and were heard of since ``since``: the same as since any later time up to ``until``.

    ``until`` is when the most silent of them was heard of. Monotonic clock.
    """

    mask: Mask
    since: float
    until: float

    @classmethod
    def hosts_up_now(cls, table: Columns, since: float) -> _UpHosts:
        """As the table is now."""
        heard_at = table.heard_at[: table.size]
        mask = table.enabled[: table.size] & (heard_at >= since)
        return cls(mask, since, float(np.where(mask, heard_at, np.inf).min(initial=np.inf)))

    def after_reports(self, rows: Ints, heard_at: Floats, enabled: Mask) -> tuple[_UpHosts, Ints]:
        """The same after these hosts were heard of, in the same mask, and those of them that went up or down."""
        up = enabled & (heard_at >= self.since)
        turned = rows[self.mask[rows] != up]
        self.mask[rows] = up
        return self._replace(until=min(self.until, float(heard_at[up].min(initial=np.inf)))), turned


class HostTable(TentativeClaims):
    """Columns, the indexes into them, and the changes they take. Every use, reading or writing, is under ``lock``.

    A row comes into being with the first word about its host, from a cell or from the ledger of claims; it may be chosen once both
    have spoken and the host is mapped to the cell that reports it, and only that one does. ``rehomed``: cells, by uuid, that are to
    be read anew, because hosts of rows that other cells told of were mapped to them. ``failing``: rows of the hosts on which builds
    have failed lately.
    """

    def __init__(self, default_zone: str = "nova") -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.hosts: list[str] = []
        self.nodes: list[str] = []
        self._topology = Topology(default_zone)
        self.cells, self.zones = self._topology.cells, self._topology.zones
        self.cell_number, self.zone_number = self._topology.cell_number, self._topology.zone_number
        self.rows_of: dict[str, tuple[int, ...]] = {}  # by names in lower case
        self.named_rows = NamedRows(self.rows_of, self.hosts)
        self.facets = DictionaryColumns()
        self.name_conflicts = HostNameConflicts()
        self.rehomed: set[str] = set()
        self.failing: set[int] = set()
        self._up: _UpHosts | None = None
        self._up_asked = -np.inf
        self._further_nodes = 0  # of hosts that have one already
        self._without_row: dict[str, float] = {}  # hosts that were mapped then, and that nobody has told of
        self._row_of_inventory: dict[int, int] = {}
        self._free: list[int] = []
        self._of_cell: dict[int, Ints] = {}
        self._by_cell: RowsByCell | None = None
        self._by_rack: RowsByRack | None = None

    def __len__(self) -> int:
        """Hosts that cells report."""
        return self.size - self.of_cell(-1).size

    @property
    def hosts_have_several_nodes(self) -> bool:
        """Whether some host has more than one row."""
        return self._further_nodes > 0

    def of_cell(self, cell: int) -> Ints:
        """The rows that the cell of this number reports, in order; -1: those that none does."""
        if cell not in self._of_cell:
            self._of_cell[cell] = np.flatnonzero(self.cell[: self.size] == cell)
        return self._of_cell[cell]

    @property
    def by_cell(self) -> RowsByCell:
        """All rows, those of a cell together. The same object until many rows have come, or have moved to other cells."""
        if self._by_cell is None or self._by_cell.room < self.size:
            self._by_cell = RowsByCell(self.cell[: self.size])
        return self._by_cell

    def _set_cell(self, rows: int | Ints, cell: int) -> None:
        before = np.atleast_1d(self.cell[rows])
        if (moved := before[before != cell]).size:
            self.cell[rows] = cell
            self._of_cell.clear()
            if self._by_cell is not None and not self._by_cell.move_rows(moved, cell):
                self._by_cell = None

    # -- rows --------------------------------------------------------------------------------------------------------------

    def hosts_up(self, since: float) -> Mask:
        """Which hosts are enabled and were heard of since then (monotonic clock). Not to be written to.

        Those that have gone up or down by time alone count as changed.
        """
        before = self._up
        self._up_asked = max(self._up_asked, since)
        if before is None or not before.since <= since <= before.until or before.mask.size != self.size:
            self._up = _UpHosts.hosts_up_now(self, since)
            if before is not None:
                known = min(before.mask.size, self.size)
                self.note_changed(np.flatnonzero(before.mask[:known] != self._up.mask[:known]))
            return self._up.mask
        return before.mask

    @property
    def up_since(self) -> float:
        """The latest time for which ``hosts_up`` was asked; -inf if never."""
        return -np.inf if self._up is None else self._up_asked

    def _note_up(self, rows: Ints) -> None:
        """These hosts were heard of, or may be enabled or not."""
        if self._up is not None:
            known = rows[rows < self._up.mask.size]
            self._up, turned = self._up.after_reports(known, self.heard_at[known], self.enabled[known])
            self.note_changed(turned)

    def find_row(self, host: str, node: str) -> int | None:
        for row in self.rows_of.get(host.lower(), ()):
            if self.hosts[row] == host and self.nodes[row] == node:
                return row
        return None

    def find_inventory(self, inventory_id: int) -> int | None:
        return self._row_of_inventory.get(inventory_id)

    def rows_of_inventories(self, inventory_ids: Iterable[int]) -> Ints:
        """The rows of these inventories, as far as there are any."""
        table_rows = (self._row_of_inventory.get(inventory) for inventory in inventory_ids)
        return np.fromiter((row for row in table_rows if row is not None), dtype=np.int64)

    def rows_named(self, hosts: Iterable[str]) -> Ints:
        """The rows of these hosts, whose names are compared without case, in order."""
        rows = {row for host in hosts for row in self.rows_of.get(host.lower(), ())}
        return np.array(sorted(rows), np.int64)

    def is_unheard(self, host: str, node: str) -> bool:
        """Nobody has told of this node's agent yet."""
        row = self.find_row(host, node)
        return row is None or bool(self.heard_at[row] == -np.inf)

    def remove_row(self, row: int) -> None:
        """Forget a host; its row goes to the next newcomer."""
        name = self.hosts[row].lower()
        siblings = tuple(sibling for sibling in self.rows_of[name] if sibling != row)
        self._further_nodes -= bool(siblings)
        self.named_rows.forget_cached()
        if siblings:
            self.rows_of[name] = siblings
        else:
            del self.rows_of[name]
            if self.mapped_at[row] > -np.inf:
                self._without_row[self.hosts[row]] = self.mapped_at.item(row)
        self._row_of_inventory.pop(int(self.inventory[row]), None)
        self._set_cell(row, -1)
        self.clear_row(row)
        self._by_rack = None
        self.failing.discard(row)
        self._note_up(np.array([row], np.int64))
        self.facets.set_attributes(np.array([row], np.int64), [{}])
        self.classes.forget_row(row)
        self._free.append(row)

    def _ensure_rows(self, hosts: Sequence[str], nodes: Sequence[str]) -> Ints:
        """The rows of these nodes, new ones for those that have none. No two are the same."""
        rows, new = list[int](), list[int]()
        for name, host, node in zip(lower_names(hosts), hosts, nodes, strict=True):
            for row in self.rows_of.get(name, ()):
                if self.hosts[row] == host and self.nodes[row] == node:
                    break
            else:
                row = self._new_row(name, host, node)
                new.append(row)
            rows.append(row)
        if new:
            self._of_cell.clear()
            self.named_rows.forget_cached()
            self._place_rows(np.array(new, np.int64))
        return np.array(rows, np.int64)

    def _new_row(self, name: str, host: str, node: str) -> int:
        if name == host:  # each name is in memory once: there may be a million
            name = host
        if node == host:
            node = host
        if self._free:
            row = self._free.pop()
            self.hosts[row], self.nodes[row] = host, node
        else:
            row = self.append_row()
            self.hosts.append(host)
            self.nodes.append(node)
        siblings = self.rows_of.get(name, ())
        self.rows_of[name] = (*siblings, row)
        self._further_nodes += bool(siblings)
        if host in self._without_row:
            self.mapped_at[row] = self._without_row.pop(host)
            if not self._without_row:
                self._without_row = {}  # an empty one still has the room of what was in it
        return row

    # -- reports of cells --------------------------------------------------------------------------------------------------

    def set_nodes(self, cell_uuid: str, nodes: Sequence[ComputeNode], *, ahead: bool = False) -> None:
        """What a cell knows of some of its nodes. Of a host that several cells tell of, the row is its home's.

        ``ahead``: it may tell of guests whose claims have not been read here yet; they count when ``account_reports`` is called.
        """
        cell = self._topology.number_of(cell_uuid)
        rows = self._ensure_rows([node.host for node in nodes], [node.node for node in nodes])
        reporting = self.cell[rows]
        if ((reporting != -1) & (reporting != cell)).any():
            nodes, rows, reporting = self._without_namesakes(cell_uuid, nodes, rows)
        known = reporting != -1 if ahead else np.zeros(rows.size, np.bool_)
        self.failing.difference_update(rows.tolist())
        self.failing.update(rows[attribute_column(nodes, "failed_builds", np.bool_)].tolist())
        halves = [halves_of(address) if (address := node.attributes.get("host_ip")) else (0, 0) for node in nodes]
        self.address_high[rows], self.address_low[rows] = np.array(halves, np.uint64).reshape(-1, 2).T
        self.facets.set_attributes(rows, [_requestable_attributes(node) for node in nodes])
        if self.classes or any(node.resources_used for node in nodes):
            for row, node, is_known in zip(rows.tolist(), nodes, known.tolist(), strict=True):
                if self.classes.report_used(row, node.resources_used, first=not is_known):
                    self._ahead.add(row)
        self._set_cell(rows, cell)
        for name, attribute in _OF_NODES.items():
            table_column = getattr(self, name)
            table_column[rows] = attribute_column(nodes, attribute, table_column.dtype)
        self._account_reports(rows[~known])
        if known.any():
            self._account_later(rows[known])
        for host in self.name_conflicts.conflicting_hosts(node.host for node in nodes):
            self._update_name_conflict(host)
        self._judge_rows(rows)

    def _without_namesakes(
        self, cell_uuid: str, nodes: Sequence[ComputeNode], rows: Ints
    ) -> tuple[Sequence[ComputeNode], Ints, Ints]:
        """Nodes, their rows and the cells that report these, without those of other cells: the rest is this cell's now."""
        cell, positions = self._topology.number_of(cell_uuid), list[int]()
        for number, (node, row) in enumerate(zip(nodes, rows.tolist(), strict=True)):
            if self.cell[row] not in (-1, cell):
                if self._topology.home_cell(node.host) != cell_uuid:
                    continue
                self.name_conflicts.add_report(node.host, int(self.cell[row]), float(self.heard_at[row]))
                self.heard_at[row] = -np.inf
            positions.append(number)
        return [nodes[number] for number in positions], rows[positions], self.cell[rows[positions]]

    def keep_nodes(self, cell_uuid: str, nodes: Collection[tuple[str, str]]) -> None:
        """A cell was read anew: it has these nodes and no others. What the ledger says of others is kept: they may return."""
        cell = self._topology.number_of(cell_uuid)
        for row in self.of_cell(cell).tolist():
            if (self.hosts[row], self.nodes[row]) in nodes:
                continue
            if self.inventory[row]:
                self._set_cell(row, -1)
                self.heard_at[row] = -np.inf
                self._judge_rows(row)
            else:
                self.remove_row(row)

    def set_service(self, cell_uuid: str, host: str, heard_at: float, *, disabled: bool, forced_down: bool) -> None:
        """When the host's agent was last heard of, by our monotonic clock, and what operators said of it."""
        flags = np.array([disabled]), np.array([forced_down])
        self.set_services(cell_uuid, ServiceReports([host], np.array([heard_at]), *flags))

    def set_services(self, cell_uuid: str, reports: ServiceReports) -> None:
        """The same of several hosts of one cell. A report that changes no flag costs its row's time alone."""
        if not reports.hosts:
            return
        cell = self._topology.number_of(cell_uuid)
        # no loop of ours: this is done for every heartbeat of the fleet
        rows_by_report = list(map(self.rows_of.get, lower_names(reports.hosts), repeat(())))
        rows: Ints = np.fromiter(chain.from_iterable(rows_by_report), np.int64)
        of: Ints = np.arange(len(rows_by_report))
        if self.hosts_have_several_nodes or rows.size != of.size:
            of = np.repeat(of, np.fromiter(map(len, rows_by_report), np.int64, len(rows_by_report)))
        is_own_cell = self.cell[rows] == cell
        if not is_own_cell.all():
            for number in np.flatnonzero(~is_own_cell).tolist():
                self._note_other_cell(int(rows[number]), cell, reports, int(of[number]))
            rows, of = rows[is_own_cell], of[is_own_cell]
        if not rows.size:
            return
        self.heard_at[rows] = reports.heard_at[of]
        disabled, forced_down = reports.disabled[of], reports.forced_down[of]
        changed = (self.disabled[rows] != disabled) | (self.forced_down[rows] != forced_down)
        if changed.any():
            self.disabled[rows], self.forced_down[rows] = disabled, forced_down
            self._judge_rows(rows[changed])
        self._note_up(rows)

    def set_feed_read(self, cell_uuid: str, upto: int) -> None:
        """The services of this cell are known as its feed says up to this event. Hosts that waited for it may be chosen again."""
        cell, feed_read = self._topology.number_of(cell_uuid), self._topology.feed_read
        before = feed_read.item(cell)
        if before != upto:
            feed_read[cell] = upto
            rows = self.of_cell(cell)
            waiting = rows[self.service_event[rows] > min(before, upto)]  # less than before: the cell was restored from a backup
            if waiting.size:
                self._judge_rows(waiting)

    def _note_other_cell(self, row: int, cell: int, reports: ServiceReports, number: int) -> None:
        """An agent of ``cell`` speaks for the host of a row that another cell reports: the report of this number."""
        host = reports.hosts[number]
        if self.cell[row] >= 0 and self.hosts[row] == host:
            self.name_conflicts.add_report(host, cell, -np.inf if reports.forced_down[number] else reports.heard_at.item(number))
            self._update_name_conflict(host)

    def expire_name_conflicts(self, since: float) -> None:
        """Agents of other cells that were not heard of since then (monotonic clock) are in no host's way any more."""
        for host in self.name_conflicts.expire_reports(since):
            self._update_name_conflict(host)

    def _update_name_conflict(self, host: str) -> None:
        """See whether agents of several cells speak for the host now."""
        for row in self.rows_of.get(host.lower(), ()):
            if self.hosts[row] == host:
                self.ambiguous[row] = self.name_conflicts.update_host(host, int(self.cell[row]), lambda cell: self.cells[cell].name)
                self._judge_rows(row)

    # -- the claims ledger -------------------------------------------------------------------------------------------------

    def set_inventory(self, inventory: Inventory, now: float) -> None:
        """A row of the ledger, unless a newer one is known already. ``now``: the monotonic clock."""
        row = self._row_of_inventory.get(inventory.id)
        if row is None:
            row = self._rows_for([inventory.id], [inventory.host], [inventory.node]).item()
        if inventory.generation <= self.generation.item(row):
            return
        first = self.generation.item(row) < 0
        fell = inventory.used_vcpus < self.claimed_vcpus.item(row) or inventory.used_memory_mb < self.claimed_memory_mb.item(row)
        if fell:
            self.fell_at[row] = now
        self.enter_inventory(row, inventory)
        self.changed_at[row] = now
        if first:
            self._account_reports(row)
        if first or inventory.service_event != self.service_event.item(row):
            self.service_event[row] = inventory.service_event
            self._judge_rows(row)

    def set_inventories(self, inventories: Sequence[Inventory], now: float) -> None:
        """The same of many rows at once, no two of one inventory."""
        self.set_inventory_columns(InventoryColumns.of_rows(inventories), now)

    def set_inventory_columns(self, read: InventoryColumns, now: float) -> None:
        """The same by column."""
        rows = self._rows_for(read.id, read.host, read.node)
        newer = np.array(read.generation, np.int64) > self.generation[rows]
        rows = rows[newer]
        first = self.generation[rows] < 0
        before = self.claimed_vcpus[rows], self.claimed_memory_mb[rows]
        for name, attribute in _OF_INVENTORIES.items():
            table_column = getattr(self, name)
            table_column[rows] = np.array(getattr(read, attribute), table_column.dtype)[newer]
        self._inverses.clear()
        self.changed_at[rows] = now
        self.fell_at[rows[(self.claimed_vcpus[rows] < before[0]) | (self.claimed_memory_mb[rows] < before[1])]] = now
        if self.classes or read.resources:
            for row, is_first in zip(rows.tolist(), first.tolist(), strict=True):
                amounts = read.resources.get(self.inventory.item(row), (NONE, NONE))
                self.classes.enter_ledger(row, *amounts, first=is_first)
        self._recount_free(rows)
        if first.any():
            self._account_reports(rows[first])
        events = np.array(read.service_event, np.int64)[newer]
        has_news = first | (events != self.service_event[rows])
        if has_news.any():
            self.service_event[rows] = events
            self._judge_rows(rows[has_news])

    def _rows_for(self, ids: Sequence[int], hosts: Sequence[str], nodes: Sequence[str]) -> Ints:
        """The rows of these inventories."""
        rows: Ints = np.fromiter(map(self._row_of_inventory.get, ids, repeat(-1)), np.int64, len(ids))
        new = np.flatnonzero(rows < 0)
        if new.size:
            numbers = new.tolist()
            of_new, keys = self._ensure_rows([hosts[n] for n in numbers], [nodes[n] for n in numbers]), [ids[n] for n in numbers]
            for key in self.inventory[of_new][self.inventory[of_new] > 0].tolist():  # an older one of the same node
                self._row_of_inventory.pop(key, None)
            self._row_of_inventory.update(zip(keys, of_new.tolist(), strict=True))
            self.inventory[of_new], self.generation[of_new] = keys, -1
            self.salt[of_new] = all_mixed(self.inventory[of_new])
            rows[new] = of_new
        return rows

    def account_reports(self, rows: Ints, now: float) -> None:
        """The ledger was read after these hosts had reported: what their agents count beyond the claims is nobody's we know.

        Unless claims have just been released there. ``now``: the monotonic clock.
        """
        rows = np.setdiff1d(rows, self._fell_lately(rows, now))
        self._account_reports(rows)
        self.note_changed(self.classes.settle_rows(rows))

    def settle_counts(self, now: float) -> Ints:
        quiet = super().settle_counts(now)
        self.note_changed(self.classes.settle_rows(quiet))
        return quiet

    # -- settings of operators ---------------------------------------------------------------------------------------------

    def set_topology(
        self,
        cells: Iterable[CellMapping],
        homes: Mapping[str, str],
        zones: Mapping[str, str],
        aggregates: Iterable[Aggregate] = (),
    ) -> None:
        """Cells and their states, the host mappings (host -> cell uuid), the zones (host -> name), the aggregates.

        Takes the lock by itself. A page of hosts is entered at a time, so that decisions need not wait for all of them. A decision
        meanwhile may see some hosts as they were: its claim is refused, because it names the old epochs. Only one thread may call
        it at a time.
        """
        before = self._topology.layout  # kept to the end: to free it takes time, too
        layout = Layout(homes, zones, aggregates, before)
        moved = sorted(layout.moved)
        with self.lock:
            now = time.monotonic()
            self._topology.layout = layout
            self._without_row = {host: at for host, at in self._without_row.items() if host in homes}
            self._without_row |= dict.fromkeys((host for host in layout.mapped if host.lower() not in self.rows_of), now)
        for start in range(0, len(moved), LAYOUT_PAGE_SIZE):
            with self.lock:
                self._place_hosts(moved[start : start + LAYOUT_PAGE_SIZE], layout.mapped, now)
        with self.lock:
            self.set_cells(cells)
        layout.forget_changes()

    def set_cells(self, cells: Iterable[CellMapping]) -> None:
        """The cells and their states alone."""
        changed = [self.cell_number(mapping.uuid) for mapping in cells if self._topology.set_cell(mapping)]
        if changed:
            self._judge_rows(np.flatnonzero(np.isin(self.home[: self.size], changed)))

    def awaits_hosts(self, since: float, silent: Container[str] = ()) -> bool:
        """Whether a host cannot be judged yet that was mapped after ``since`` (monotonic clock), or whose service changed since.

        Its cell or the ledger is to speak. ``silent``: names of cells that do not answer: nobody waits for theirs.
        """
        mute = [number for number, cell in enumerate(self.cells) if cell.name in silent]
        mapped_lately = (host for host, at in self._without_row.items() if at > since)
        if any(self.cell_number(self._topology.home_cell(host) or "") not in mute for host in mapped_lately):
            return True
        size = slice(self.size)
        if (self.behind[size] & (self.changed_at[size] > since)).any():
            return True
        lately = np.flatnonzero(self.mapped_at[size] > since)
        for row in lately[~self._has_spoken(lately, mute)].tolist():
            nodes = np.array(self.rows_of[self.hosts[row].lower()], np.int64)
            if not self._has_spoken(nodes, mute).any():  # another node of the host may have been told of
                return True
        return False

    def _has_spoken(self, rows: Ints, mute: Sequence[int]) -> Mask:
        """Of which of these rows cell and ledger have spoken, or will not."""
        has_spoken: Mask = (self.inventory[rows] > 0) & (self.cell[rows] == self.home[rows]) & (self.heard_at[rows] > -np.inf)
        return has_spoken | np.isin(self.home[rows], mute) if mute else has_spoken

    def _place_hosts(self, hosts: Iterable[str], mapped: Container[str], now: float) -> None:
        """Enter where operators have put these hosts. ``mapped``: those that were mapped just now."""
        host_rows = [row for host in hosts for row in self.rows_of.get(host.lower(), ()) if self.hosts[row] == host]
        rows = np.array(host_rows, np.int64)
        self._place_rows(rows)
        self.mapped_at[[row for row in host_rows if self.hosts[row] in mapped]] = now
        self._judge_rows(rows)

    def _place_rows(self, rows: Ints) -> None:
        """Where operators have put the hosts of these rows."""
        hosts = [self.hosts[row] for row in rows.tolist()]
        homes, cells = self._topology.home_numbers(hosts), self.cell[rows]
        moved = (homes != -1) & (cells != -1) & (cells != homes) & (self.home[rows] != homes)
        self.rehomed.update(self.cells[number].uuid for number in homes[moved].tolist())
        self.mapped_at[rows[homes == -1]] = -np.inf
        self.home[rows] = homes
        self.zone[rows] = self._topology.zones_of(hosts)
        self.aggregation[rows] = self.current_aggregates.combinations_of(hosts)
        self._by_rack = None

    def racks_of(self, rows: Ints | slice) -> Ints:
        """The racks of these rows by number; -1: in none, or in several. Not to be written to."""
        if isinstance(rows, slice):
            return self.by_rack.racks[rows]
        rack_numbers: Ints = self.current_aggregates.rack_layout.of[self.aggregation[rows]]
        return rack_numbers

    def racks_named(self, hosts: Iterable[str]) -> Iterator[tuple[int, str]]:
        """Those of the hosts, named in lower case, that are in one rack, with its number. All nodes of a host are in the same."""
        racks, rows_of = self.by_rack.racks, self.rows_of
        for host in hosts:
            rows = rows_of.get(host)
            if rows and (rack := racks.item(rows[0])) >= 0:
                yield rack, host

    @property
    def by_rack(self) -> RowsByRack:
        """All rows, those of a rack together."""
        of_combinations, rows_by_rack = self.current_aggregates.rack_layout.of, self._by_rack
        if rows_by_rack is None or rows_by_rack.of_combinations is not of_combinations or rows_by_rack.racks.size != self.size:
            rows_by_rack = self._by_rack = RowsByRack(self.aggregation[: self.size], of_combinations)
        return rows_by_rack

    @property
    def current_aggregates(self) -> Aggregates:
        return self._topology.layout.aggregates

    def are_known(self, rows: int | Ints | slice) -> Mask:
        """Which of these are mapped to the cell that they report to, known to the ledger, and up to date."""
        home = self.home[rows]
        known: Mask = (home >= 0) & (home == self.cell[rows]) & (self.inventory[rows] > 0) & ~self.behind[rows]
        return known

    def _judge_rows(self, rows: int | Ints) -> None:
        home = self.home[rows]
        self.cell_open[rows] = self._topology.takes_builds[home]  # -1, of a host without a home, selects the last element
        self.enabled[rows] = self.cell_open[rows] & ~self.disabled[rows]
        self.behind[rows] = self.service_event[rows] > self._topology.feed_read[home]
        self.eligible[rows] = self.are_known(rows) & ~self.forced_down[rows] & ~self.ambiguous[rows]
        self._note_up(np.atleast_1d(np.asarray(rows, np.int64)))
        self.note_changed(rows)


def _requestable_attributes(node: ComputeNode) -> dict[str, Any]:
    """What requests may ask of the node, by name."""
    hypervisor = {"hypervisor_type": node.hypervisor_type or None, "hypervisor_version": node.hypervisor_version or None}
    return node.attributes | hypervisor
