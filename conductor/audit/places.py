"""The databases of an audit: the API database and the cells that answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from cells.cell import Cell
from cells.registry import CellRegistry
from conductor.apply import Applier
from db.api.claims.claims import Ledger
from db.sql.connection import CellTransaction
from db.sql.engine import ApiDatabase
from images.store import FolderStore
from objects import errors

P = ParamSpec("P")
T = TypeVar("T")


HEARD_WITHIN_S = 180.0


class Places:
    """The databases of one audit. A cell that fails to answer once is not asked again: its part is unknown.

    ``overdue``: seconds after which work that a sweep should have done counts as undone. ``images``: the image store, if any.
    """

    def __init__(
        self,
        api_database: ApiDatabase,
        ledger: Ledger,
        registry: CellRegistry,
        *,
        overdue: float,
        images: FolderStore | None = None,
    ) -> None:
        self.api = api_database
        self.ledger = ledger
        self.overdue = overdue
        self.images = images
        self.heard_within = HEARD_WITHIN_S
        """Seconds for which a host counts as up after its agent's last report."""
        self.end_unproven = False
        """Whether an operator has allowed repairs that destroy guests not proven to be duplicates."""
        self.registry = registry
        self.unknown: dict[str, str] = {}
        """Cells that could not be asked (UUID -> reason), and failed checks (name -> reason)."""
        self.cells: dict[str, Cell] = {}
        self._names: dict[str, str] = {}

    def begin_check(self) -> None:
        """Start a new check of everything: read the list of cells, and ask all of them again."""
        self.registry.refresh_cells()
        cells = list(self.registry.list_cells())
        with contextlib.suppress(errors.NotFound):  # its servers are then found in a missing cell
            cells.append(self.registry.cell0)
        self.cells = {cell.uuid: cell for cell in cells}
        self.unknown = self.registry.reasons_by_uuid()
        self._names = {cell.uuid: cell.name for cell in cells}

    @property
    def overdue_before(self) -> float:
        """Work due before this moment is overdue; by the API database's clock, in seconds since the epoch."""
        return self.api.current_time() - self.overdue

    def late_in(self, cell_uuid: str) -> float:
        """The same by the clock of a cell's database."""
        return self.cell_time(cell_uuid) - self.overdue

    def cell_time(self, cell_uuid: str) -> float:
        """The time of a cell's database, in seconds since the epoch."""
        now = self.call_cell(cell_uuid, lambda cell: cell.current_time())
        return self.api.current_time() if now is None else now  # a silent cell is not checked

    @property
    def building_cells(self) -> list[Cell]:
        """The cells that have hosts."""
        return [cell for cell in self.cells.values() if not cell.current_mapping.is_cell0]

    def name_of(self, cell_uuid: str | None) -> str:
        return self._names.get(cell_uuid or "", cell_uuid or "")

    def is_known(self, cell_uuid: str) -> bool:
        return cell_uuid in self.cells or cell_uuid in self.unknown

    def read_cell(
        self, cell_uuid: str, fn: Callable[Concatenate[CellTransaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Run ``fn(tx, ...)`` as a read in the cell's database; None if there is no such cell or it does not answer."""
        return self.call_cell(cell_uuid, lambda cell: cell.read(fn, *args, **kwargs))

    def write_cell(
        self, cell_uuid: str, fn: Callable[Concatenate[CellTransaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Run ``fn(tx, ...)`` as a write in the cell's database; None as in ``read_cell``."""
        return self.call_cell(cell_uuid, lambda cell: cell.write(fn, *args, **kwargs))

    def catch_up(self, cell_uuid: str) -> None:
        """Apply the cell's feed to its end, and its nodes' capacities, as a super conductor does when it starts."""
        self.call_cell(cell_uuid, self._apply_feed)

    def call_cell(self, cell_uuid: str, call: Callable[[Cell], T]) -> T | None:
        """Call ``call`` with the cell; None if there is no such cell or it does not answer."""
        cell = self.cells.get(cell_uuid)
        if cell is None or cell_uuid in self.unknown:
            return None
        try:
            return call(cell)
        except errors.CellUnavailable as error:
            self.unknown[cell_uuid] = str(error)
            return None

    def _apply_feed(self, cell: Cell) -> None:
        applier = Applier(self.ledger, cell)
        try:
            applier.map_hosts(self.registry.hosts_of(cell.uuid))
            while applier.apply_page():
                pass
        except errors.Conflict:
            """Another applier is applying it now."""
