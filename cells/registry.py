"""The cells this process knows, kept as the API database has them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from cells import template
from cells.cell import Cell
from cells.opts import RegistrySettings as RegistrySettings  # offered from here too: it is what a registry is made with
from db.api.deployment import cell_mappings, host_mappings
from db.api.rows.cache import EpochCache, EpochReader
from db.sql.engine import ApiDatabase, CellDatabase
from objects import errors
from objects.cell import CELL0_UUID, CellMapping
from objects.mask import mask_url
from rpc.transport import Bus
from service import metrics
from service.threads import start_daemon

LOG = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 15.0
"""Seconds to wait for cells to close when a process ends; what hangs longer is left behind."""

OpenDatabase = Callable[[CellMapping], CellDatabase]
OpenBus = Callable[[CellMapping], Bus | None]


def open_database(mapping: CellMapping, *, outbox: bool = False) -> CellDatabase:
    """The cell's database; connects when first used. The mapping is an expanded one, here and below."""
    return CellDatabase(mapping.database_url, name=f"cell {mapping.name}", outbox=outbox)


def open_bus(mapping: CellMapping) -> Bus | None:
    """The cell's bus; connects when first used. A transport ``none:///`` means that there is none."""
    if mapping.transport_url.startswith("none:"):
        return None
    return Bus(mapping.transport_url, name=f"cell {mapping.name}")


class CellRegistry:
    """Gives out ``Cell`` objects. Follows the epochs of cells and of host mappings, so no process needs a signal or a restart.

    A cell whose URLs did not change keeps its Cell object, with its connections and what its breaker knows, for as long as the
    registry lives. While the API database cannot be asked, the registry goes on with what it knew. Safe for threads.
    """

    def __init__(
        self,
        api_database: ApiDatabase,
        settings: RegistrySettings | None = None,
        *,
        open_database: OpenDatabase = open_database,
        open_bus: OpenBus = open_bus,
    ) -> None:
        self._settings = settings or RegistrySettings()
        self._open_database = open_database
        self._open_bus = open_bus
        interval = self._settings.poll_interval
        self.epochs = EpochReader(api_database)
        """For whoever else follows epochs of the API database in this process."""
        self._mappings = EpochCache(self.epochs, ("cells",), cell_mappings.list_all, interval=interval)
        self._hosts = EpochCache(self.epochs, ("hosts",), host_mappings.cell_uuid_by_host, interval=interval)
        self._grouped: dict[str, frozenset[str]] = {}
        self._grouped_from: dict[str, str] | None = None
        self._lock = threading.Lock()
        self._seen: object = None
        self._cells: dict[str, Cell] = {}
        self._listed: tuple[Cell, ...] = ()
        self._broken: dict[str, str] = {}
        self._broken_names: dict[str, str] = {}
        self._retired: list[tuple[float, Cell]] = []
        metrics.BREAKER.follow_reader(self._breaker_values)

    def list_cells(self) -> tuple[Cell, ...]:
        """All cells but cell0, enabled or not, by name. Cells whose URLs cannot be used are left out; see ``reasons_by_uuid``."""
        self._follow_changes()
        return self._listed

    def get(self, uuid: str) -> Cell:
        """Raises NotFound, or CellUnavailable where the mapping's URLs cannot be used."""
        self._follow_changes()
        if uuid not in self._cells:
            self._mappings.refresh_value()  # it may be younger than the last look
            self._follow_changes()
        if uuid in self._broken:
            raise errors.CellUnavailable(self._broken[uuid])
        try:
            return self._cells[uuid]
        except KeyError:
            raise errors.NotFound(f"No cell has the uuid {uuid}.") from None

    @property
    def cell0(self) -> Cell:
        """Raises NotFound where it was not created."""
        self._follow_changes()
        if CELL0_UUID not in self._cells:
            raise errors.NotFound("There is no cell0: create it with 'superconductor cell create cell0 --cell0'.")
        return self._cells[CELL0_UUID]

    def of_host(self, host: str) -> Cell:
        """The cell the host is mapped to. Raises HostNotMapped."""
        uuid = self._hosts.get().get(host)
        if uuid is None:
            uuid = self._hosts.refresh_value().get(host)
        if uuid is None:
            raise errors.HostNotMapped(f"Host {host!r} is not mapped to a cell: run 'superconductor host discover'.")
        try:
            return self.get(uuid)
        except errors.NotFound:
            raise errors.HostNotMapped(f"Host {host!r} is mapped to cell {uuid}, which does not exist.") from None

    def hosts_of(self, uuid: str, age: float | None = None) -> frozenset[str]:
        """The hosts mapped to a cell. The same object is returned while no host mapping changes.

        ``age``: seconds for which a check for changed mappings counts; None: as with everything else.
        """
        hosts = self._hosts.get(age)
        if hosts is not self._grouped_from:
            groups: dict[str, set[str]] = {}
            for host, cell_uuid in hosts.items():
                groups.setdefault(cell_uuid, set()).add(host)
            self._grouped, self._grouped_from = {cell: frozenset(names) for cell, names in groups.items()}, hosts
        return self._grouped.get(uuid, frozenset())

    def home_of(self, host: str) -> str | None:
        """The uuid of the cell that a host is mapped to, None where it is not mapped; as of the last look."""
        return self._hosts.get().get(host)

    def has_silent(self) -> bool:
        """Whether a cell's database does not answer, or a cell cannot be used, as far as this process knows. Reads nothing."""
        return bool(self._broken) or any(cell.database_silent_since is not None for cell in self._listed)

    def reasons_by_uuid(self) -> dict[str, str]:
        """Cells that cannot be used whatever their servers do, because a URL is malformed: uuid -> reason."""
        self._follow_changes()
        return dict(self._broken)

    def broken_by_name(self) -> dict[str, str]:
        """The same by name."""
        self._follow_changes()
        return {self._broken_names[uuid]: reason for uuid, reason in self._broken.items()}

    def _breaker_values(self) -> metrics.Values:
        """As they are, without looking for changes: who measures must not wait for a database."""
        return [
            ((cell.name, resource), broken) for cell in self._listed for resource, broken in cell.refusals_by_resource().items()
        ]

    def refresh_cells(self) -> None:
        """Look for changes now rather than at the next poll."""
        self._mappings.refresh_value()
        self._hosts.refresh_value()
        self._follow_changes()

    def close(self) -> None:
        """Close every cell, all at the same time, and wait for that a bounded while. The registry must not be used afterwards."""
        with self._lock:
            cells = [*self._cells.values(), *(cell for _, cell in self._retired)]
            self._cells, self._listed, self._retired = {}, (), []
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for closing in _close_cells(cells):
            closing.join(max(0.0, deadline - time.monotonic()))

    def _follow_changes(self) -> None:
        """Make the cells agree with the mappings, if these have changed."""
        mappings = self._mappings.get()
        if mappings is not self._seen:
            with self._lock:
                if mappings is not self._seen:
                    self._apply_mappings(mappings)
                    self._seen = mappings
        if self._retired:
            self._close_retired()

    def _apply_mappings(self, mappings: Sequence[CellMapping]) -> None:
        """Made aside and published whole: nobody may find a cell missing while others are being opened."""
        before = dict(self._cells)
        cells: dict[str, Cell] = {}
        broken: dict[str, str] = {}
        for mapping in mappings:
            cell = before.get(mapping.uuid)
            if cell is not None and cell.follow_mapping(mapping):
                cells[mapping.uuid] = before.pop(mapping.uuid)
                continue
            try:
                cells[mapping.uuid] = self._open(mapping)
            except errors.SuperconductorError as error:  # one malformed URL must not take the other cells from us
                broken[mapping.uuid] = f"cell {mapping.name!r} cannot be used: {error}"
                LOG.error("%s", broken[mapping.uuid])
        self._broken_names |= {mapping.uuid: mapping.name for mapping in mappings if mapping.uuid in broken}
        self._cells, self._broken = cells, broken
        self._listed = tuple(sorted((c for c in cells.values() if not c.current_mapping.is_cell0), key=lambda c: c.name))
        closing_at = time.monotonic() + self._settings.linger
        self._retired += [(closing_at, cell) for cell in before.values()]
        for cell in before.values():
            LOG.info("cell %s (%s) was removed or has new URLs: its connections will be closed", cell.name, cell.uuid)

    def _open(self, mapping: CellMapping) -> Cell:
        expanded = template.expand_mapping(mapping, self._settings.local)
        cell = Cell(mapping, self._open_database(expanded), self._open_bus(expanded), self._settings.bulkhead)
        cell.know_peers(self._settings.pinned)
        LOG.info("cell %s (%s): database %s", mapping.name, mapping.uuid, mask_url(mapping.database_url))
        return cell

    def _close_retired(self) -> None:
        now = time.monotonic()
        with self._lock:
            due = [cell for at, cell in self._retired if at <= now]
            self._retired = [(at, cell) for at, cell in self._retired if at > now]
        _close_cells(due)


def _close_cells(cells: Iterable[Cell]) -> list[threading.Thread]:
    """Close cells in threads of their own: a dead broker takes its time, and whoever came by should not have to wait for it."""
    threads = [start_daemon(f"close {cell.name}", cell.close) for cell in cells]
    return [thread for thread in threads if thread is not None]
