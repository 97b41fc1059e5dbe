"""Keep the host table fresh: a thread per cell for its feed and heartbeats, and one for claims, mappings and zones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from cells.cell import Cell
from cells.registry import CellRegistry
from db import aggregates, cell_mappings, claims, host_mappings
from db.cache import EpochCache
from db.connection import Connection
from db.engine import Database
from db.epochs import Epoch
from objects.base import Object
from objects.cell import CellMapping
from scheduler.cursor import Cursor
from scheduler.settings import Settings
from scheduler.table import HostTable
from scheduler.watch import CellWatch
from service.periodic import Periodic, wait_until

LOG = logging.getLogger(__name__)

FIRST_LOOK = 10.0
"""Longest that a start waits for cells to have been read once, in seconds."""


class Topology(Object, frozen=True, kw_only=True):
    """What operators say of the fleet: cells, host -> cell uuid, host -> zone."""

    cells: tuple[CellMapping, ...]
    homes: dict[str, str]
    zones: dict[str, str]


def read_topology(tx: Connection) -> Topology:
    zones: dict[str, str] = {}
    for aggregate in aggregates.list_all(tx):
        if aggregate.availability_zone is not None:
            zones |= dict.fromkeys(aggregate.hosts, aggregate.availability_zone)
    return Topology(
        cells=tuple(mapping for mapping in cell_mappings.list_all(tx) if not mapping.is_cell0),
        homes={mapping.host: mapping.cell_uuid for mapping in host_mappings.list_all(tx)},
        zones=zones,
    )


class Freshness:
    """Starts and stops what feeds the table. A cell that does not answer holds up its own thread only."""

    def __init__(
        self, settings: Settings, registry: CellRegistry, api_database: Database, table: HostTable, cursor: Cursor
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._database = api_database
        self._table = table
        self._cursor = cursor
        names = (Epoch.CELLS, Epoch.HOSTS, Epoch.AGGREGATES)
        self._topology = EpochCache(api_database, names, read_topology, interval=0.0)
        self._applied: Topology | None = None
        self._version = 0
        self._following = threading.Lock()
        self._watches: dict[str, tuple[CellWatch, Periodic]] = {}
        self._ledger_read = False
        self._follower = Periodic("scheduler-follow", settings.claims_poll_interval, self.follow)

    def start(self) -> None:
        """Returns when every cell was read once, or has had its time. Raises DatabaseUnavailable if the API database is away."""
        self.follow()
        self._follower.start()
        if not wait_until(lambda: all(watch.seen_at is not None for watch, _ in self._watches.values()), FIRST_LOOK):
            unread = [watch.cell.name for watch, _ in self._watches.values() if watch.seen_at is None]
            LOG.warning("starting without a view of cells %s: their hosts join when they answer", ", ".join(unread))

    def stop(self) -> None:
        self._follower.stop()
        for _, periodic in self._watches.values():
            periodic.stop()
        self._watches = {}

    def ages(self) -> dict[str, float | None]:
        """How old the view of each cell is, in seconds; None where that is too old to mean anything, or there is none."""
        now = time.monotonic()
        return {watch.cell.name: self._age(watch, now) for watch, _ in list(self._watches.values())}

    def _age(self, watch: CellWatch, now: float) -> float | None:
        if watch.seen_at is None or now - watch.seen_at > self._settings.service_down_time:
            return None
        return round(now - watch.seen_at, 3)

    def follow(self) -> None:
        """One look at everything that is not a cell's to tell."""
        self._follow_topology(self._topology.get)
        self._follow_claims()
        self._follow_cells({cell.uuid: cell for cell in self._registry.cells()})

    def topology(self, *, look: bool) -> int:
        """Which topology the table has: a number that rises with every change. ``look``: see first whether there is a newer one."""
        if look:
            self._follow_topology(self._topology.refresh)
        return self._version

    def _follow_topology(self, read: Callable[[], Topology]) -> None:
        with self._following:  # whoever comes while another one reads waits for what that one finds
            topology = read()
            if topology is not self._applied:
                with self._table.lock:
                    self._table.set_topology(topology.cells, topology.homes, topology.zones)
                self._applied = topology
                self._version += 1

    def _follow_claims(self) -> None:
        rows = (
            self._database.read(claims.changed_since, *self._position())
            if self._ledger_read
            else self._database.read(claims.read_all)
        )
        self._ledger_read = True
        now = time.monotonic()
        with self._table.lock:
            for row in rows:
                self._table.set_inventory(row, now)
            self._cursor.advance(rows)
            self._table.settle(now)

    def _position(self) -> tuple[Mapping[int, int], int]:
        with self._table.lock:
            recent, newest = self._cursor.position()
            further, _ = self._cursor.further()
            return {**recent, **further}, newest

    def _follow_cells(self, cells: Mapping[str, Cell]) -> None:
        """A watch per cell of the registry; a Cell object that was replaced gets a new one."""
        for uuid, (watch, periodic) in list(self._watches.items()):
            if cells.get(uuid) is not watch.cell:
                periodic.stop(timeout=0.0)
                del self._watches[uuid]
                if uuid not in cells:
                    self._forget(uuid)
        for uuid, cell in cells.items():
            if uuid not in self._watches:
                watch = CellWatch(cell, self._table, self._settings)
                name, interval = f"scheduler-{cell.name}", self._settings.feed_poll_interval
                self._watches[uuid] = (watch, Periodic(name, interval, watch.look).start())

    def _forget(self, cell_uuid: str) -> None:
        with self._table.lock:
            self._table.keep_nodes(cell_uuid, ())
