"""How far a scheduler has read the fleet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from objects.flavor import Flavor


class FleetView(NamedTuple):
    """How far this process has read the cells.

    ``ages``: seconds since each cell was read, by name; None for a cell that was never read as a whole.
    ``reading``: names of the cells among these that answer, so they are being read.
    ``read_at``: when the last cell was read for the first time (monotonic clock); inf while one is being read.
    """

    ages: Mapping[str, float | None]
    reading: Collection[str] = ()
    read_at: float = 0.0

    @property
    def silent_cells(self) -> set[str]:
        """Names of the cells that were never read as a whole and do not answer."""
        return {cell for cell, age in self.ages.items() if age is None and cell not in self.reading}


class FleetReader(Protocol):
    """Keeps the host table up to date: a ``TableUpdater``."""

    def current_view(self) -> FleetView:
        """How far the cells have been read."""

    def topology_epochs(self, *, look: bool) -> Mapping[str, int]:
        """The epochs of the cells, mappings and aggregates in the table. ``look``: first read the API database."""

    def usable_flavors(self, project_id: str) -> Sequence[Flavor]:
        """The flavors that a project may use, the largest first."""

    def hurry_cells(self, cells: Collection[str] | None = None) -> None:
        """Read these cells soon, by name: hosts there were chosen. None: read all, because a request waits for hosts."""
