"""How far a scheduler has read the fleet."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


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
