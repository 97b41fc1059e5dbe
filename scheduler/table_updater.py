"""Keep the host table fresh: a thread per cell for its feed and heartbeats, and one for claims, mappings and zones."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial

from cells.cell import Cell
from cells.registry import CellRegistry
from db.api.claims import claims
from db.api.deployment import aggregates, cell_mappings, host_mappings
from db.api.projects import flavors
from db.api.rows import epochs
from db.api.rows.cache import EpochCache
from db.api.rows.epochs import Epoch
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors, extra_specs
from objects.aggregate import Aggregate
from objects.base import Object
from objects.cell import CellMapping
from objects.flavor import Flavor
from scheduler.cell_reader import CellWatch
from scheduler.claim.cursor import Cursor
from scheduler.explain.largest_flavor import by_size
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from scheduler.view import FleetView
from service import metrics
from service.garbage import without_garbage_collection
from service.pace import Pace
from service.periodic import Periodic, wait_until

LOG = logging.getLogger(__name__)

FIRST_READ_TIMEOUT_S = 10.0
"""Maximum seconds that a start waits until every cell that answers has been read once."""


VIEW_KEPT_S = 0.05
"""Seconds for which decisions share a view of how far the cells have been read."""

LOADS_LIMIT = 4
"""Cells whose nodes are read at the same time. All of many cells at once would take much memory, and none would be ready early."""

TOPOLOGY_EPOCHS = (Epoch.CELLS, Epoch.HOSTS, Epoch.AGGREGATES)
"""The epochs of the parts of a topology."""


class FleetTopology(Object, frozen=True, kw_only=True):
    """What operators have configured: cells, host mappings and aggregates.

    ``homes``: host -> cell uuid. ``epochs``: by name; the parts are at least as new as these.
    """

    epochs: dict[str, int]
    cells: tuple[CellMapping, ...]
    homes: dict[str, str]
    aggregates: tuple[Aggregate, ...]

    def zones_by_host(self) -> dict[str, str]:
        """Host -> name of its availability zone; hosts without one are absent."""
        return {host: one.availability_zone for one in self.aggregates if one.availability_zone for host in one.hosts}


def read_topology(tx: ApiTransaction, before: FleetTopology | None = None) -> FleetTopology:
    """Read the topology. Parts whose epochs are unchanged are taken from ``before``."""
    now = epochs.read(tx)  # first, so that a change during the other reads is seen the next time
    numbers = {str(name): now.get(name, 0) for name in TOPOLOGY_EPOCHS}
    same = {name for name in TOPOLOGY_EPOCHS if before is not None and before.epochs[name] == numbers[name]}
    return FleetTopology(
        epochs=numbers,
        cells=before.cells if before and Epoch.CELLS in same else _list_cells(tx),
        homes=before.homes if before and Epoch.HOSTS in same else host_mappings.cell_uuid_by_host(tx),
        aggregates=before.aggregates if before and Epoch.AGGREGATES in same else tuple(aggregates.list_all(tx)),
    )


def _list_cells(tx: ApiTransaction) -> tuple[CellMapping, ...]:
    return tuple(mapping for mapping in cell_mappings.list_all(tx) if not mapping.is_cell0)


class UsableFlavors(Object, frozen=True, kw_only=True):
    """The flavors that servers can be booted from, the largest first, and the projects that may use those that are not public."""

    flavors: tuple[Flavor, ...]
    access: dict[str, frozenset[str]]

    def usable_by(self, project_id: str) -> list[Flavor]:
        """Those that the project may use."""
        return [flavor for flavor in self.flavors if flavor.is_public or project_id in self.access.get(flavor.flavor_id, ())]


def read_flavors(tx: ApiTransaction) -> UsableFlavors:
    usable_flavors = sorted(
        (flavor for flavor in flavors.list_all(tx) if not flavor.disabled and _is_bootable(flavor)), key=by_size
    )
    return UsableFlavors(flavors=tuple(usable_flavors), access=flavors.projects_of_all(tx))


def _is_bootable(flavor: Flavor) -> bool:
    """An earlier release may have accepted extra specs that are refused at a boot."""
    try:
        extra_specs.check_specs(flavor.extra_specs)
    except errors.Invalid:
        return False
    return True


class TableUpdater:
    """Starts and stops the threads that update the table. A cell that does not answer delays only its own thread."""

    def __init__(
        self, settings: SchedulerSettings, registry: CellRegistry, api_database: ApiDatabase, table: HostTable, cursor: Cursor
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._database = api_database
        self._table = table
        self._cursor = cursor
        self._topology = EpochCache(registry.epochs, TOPOLOGY_EPOCHS, lambda tx: read_topology(tx, self._applied), interval=0.0)
        self._applied: FleetTopology | None = None
        self._flavors = EpochCache(registry.epochs, (Epoch.FLAVORS,), read_flavors)
        self._usable_flavors = UsableFlavors(flavors=(), access={})
        self._following = threading.Lock()
        self._watches: dict[str, tuple[CellWatch, Periodic]] = {}
        self._by_name: dict[str, CellWatch] = {}  # made anew when a cell comes or goes
        self._view: tuple[float, FleetView] | None = None
        self._loads = threading.Semaphore(LOADS_LIMIT)
        self._first_read = ExitStack()
        self._ledger_read = False
        self._pace = Pace(settings.claims_poll_interval, settings.idle_interval)
        self._follower = Periodic("scheduler-follow", self._pace, self.follow_changes)
        metrics.VIEW_AGE.follow_reader(self._view_ages)

    def start(self) -> None:
        """Start, and wait until every cell that answers was read once, at most ``FIRST_READ_TIMEOUT_S`` seconds.

        Raises DatabaseUnavailable if the API database is away.
        """
        # until all cells are read, which may take longer than the start
        self._first_read.enter_context(without_garbage_collection())
        try:
            self.follow_changes()
        except BaseException:
            self._first_read.close()
            raise
        self._follower.start()
        wait_until(lambda: not self.is_reading, FIRST_READ_TIMEOUT_S)
        view = self.current_view()
        if not view.reading:
            self._first_read.close()
        else:
            LOG.warning("starting while cells are read: %s; what only their hosts may take waits", ", ".join(sorted(view.reading)))
        if view.silent_cells:
            LOG.warning(
                "starting without a view of cells %s: their hosts join when they answer", ", ".join(sorted(view.silent_cells))
            )

    def stop(self) -> None:
        self._follower.stop()
        self._first_read.close()
        for watch, periodic in self._watches.values():
            watch.stop()
            periodic.stop(timeout=0.0)
        for _, periodic in self._watches.values():
            periodic.stop()
        self._watches = {}

    def ages_by_cell(self) -> dict[str, float | None]:
        """Seconds since each cell was read, by name; None for a cell that was never read: it did not answer or cannot be used."""
        now = time.monotonic()
        ages: dict[str, float | None] = {cell.name: None for cell in self._applied.cells} if self._applied else {}
        for watch, _ in list(self._watches.values()):
            ages[watch.cell.name] = None if watch.seen_at is None else round(now - watch.seen_at, 3)
        return ages

    @property
    def is_reading(self) -> bool:
        """Whether a cell that answers was never read as a whole."""
        return any(watch.is_reading for watch, _ in list(self._watches.values()))

    def current_view(self) -> FleetView:
        """How far the cells have been read, at most ``VIEW_KEPT_S`` ago: every claim asks, and there may be a thousand cells."""
        now, cached = time.monotonic(), self._view
        if cached is not None and now - cached[0] < VIEW_KEPT_S:
            return cached[1]
        watches = [watch for watch, _ in list(self._watches.values())]
        reading = {watch.cell.name for watch in watches if watch.is_reading}
        read_at = math.inf if reading else max((watch.first_read_at or -math.inf for watch in watches), default=-math.inf)
        view = FleetView(self.ages_by_cell(), reading, read_at)
        self._view = now, view
        return view

    def _view_ages(self) -> metrics.Values:
        return [((cell,), float("inf") if age is None else age) for cell, age in self.ages_by_cell().items()]

    def follow_changes(self) -> None:
        """Read everything that comes from the API database: claims, topology and cells. Most rounds are one statement."""
        began = time.monotonic()
        with self._table.lock:
            self._table.expire_name_conflicts(began - self._settings.service_down_time)
        if self._ledger_read:
            self._follow_claims()  # first: it reads the epochs for all that follow
        self._follow_topology(partial(self._topology.refresh_value, began))
        self._usable_flavors = self._flavors.get()
        if not self._ledger_read:
            self._read_ledger()
        self._follow_cells({cell.uuid: cell for cell in self._registry.list_cells()})
        if not self.is_reading:
            self._first_read.close()

    def usable_flavors(self, project_id: str) -> list[Flavor]:
        """The flavors that the project could use some seconds ago, the largest first. Reads nothing."""
        return self._usable_flavors.usable_by(project_id)

    def hurry_cells(self, cells: Collection[str] | None = None) -> None:
        """Read these cells soon, by name: hosts there were chosen. None: read all."""
        self._pace.hurry_for()
        watches = self._by_name
        for name in watches if cells is None else watches.keys() & cells:
            watches[name].pace.hurry_for()

    def topology_epochs(self, *, look: bool) -> Mapping[str, int]:
        """The epochs of the topology in the table, for a decision. ``look``: first read a newer one, if there is any."""
        self._pace.hurry_for()
        if look:
            self._follow_topology(self._topology.refresh_value)
        return self._applied.epochs if self._applied else {}

    def _follow_topology(self, read: Callable[[], FleetTopology]) -> None:
        with self._following:  # a thread that comes during a read waits for it and uses its result
            topology = read()
            if topology is not self._applied:
                self._apply_topology(topology, self._applied)
                with self._table.lock:
                    rehomed, self._table.rehomed = self._table.rehomed, set()
                self._applied = topology
                self.hurry_cells()
                for uuid in rehomed & self._watches.keys():
                    self._watches[uuid][0].read_anew()

    def _apply_topology(self, topology: FleetTopology, before: FleetTopology | None) -> None:
        if before and topology.homes is before.homes and topology.aggregates is before.aggregates:
            with self._table.lock:
                self._table.set_cells(topology.cells)
        else:
            self._table.set_topology(topology.cells, topology.homes, topology.zones_by_host(), topology.aggregates)

    def _follow_claims(self) -> None:
        with self._table.lock:
            ahead = self._table.take_rows_ahead()
        began = time.monotonic()
        log = self._database.read(claims.changed_since, *self._log_position())
        self._registry.epochs.note_epochs(log.epochs, began)
        now = time.monotonic()
        with self._table.lock:
            self._table.set_inventories(log.rows, now)
            self._cursor.note_rows(log.rows)
            self._cursor.note_newest(log.newest)
            self._table.account_reports(ahead, now)
            self._table.settle_counts(now)

    def _read_ledger(self) -> None:
        """Read all inventories, page by page. Changes made meanwhile come with the claims log, whose position is read first."""
        read = self._database.read(claims.last_positions)
        last = 0
        while (page := self._database.read(claims.read_after, last)).id:
            with self._table.lock:
                self._table.set_inventory_columns(page, time.monotonic())
            last = max(page.id)
        with self._table.lock:
            for writer, sequence in sorted(read.items()):
                self._cursor.note_writer(writer, sequence)
        self._ledger_read = True

    def _log_position(self) -> tuple[Mapping[int, int], int]:
        with self._table.lock:
            recent, newest = self._cursor.recent_position()
            further, _ = self._cursor.next_position()
            return {**recent, **further}, newest

    def _follow_cells(self, cells: Mapping[str, Cell]) -> None:
        """Keep one watch per cell of the registry. A Cell object that was replaced gets a new watch."""
        for uuid, (watch, periodic) in list(self._watches.items()):
            if cells.get(uuid) is not watch.cell:
                watch.stop()
                periodic.stop(timeout=0.0)
                del self._watches[uuid]
                if uuid not in cells:
                    self._forget_cell(uuid)
        for uuid, cell in cells.items():
            if uuid not in self._watches:
                watch = CellWatch(cell, self._table, self._settings, self._loads)
                self._watches[uuid] = (watch, Periodic(f"scheduler-{cell.name}", watch.pace, watch.read_changes).start())
        by_name = {watch.cell.name: watch for watch, _ in self._watches.values()}
        if by_name != self._by_name:
            self._by_name, self._view = by_name, None

    def _forget_cell(self, cell_uuid: str) -> None:
        with self._table.lock:
            self._table.keep_nodes(cell_uuid, ())
            self._table.set_feed_read(cell_uuid, 0)
