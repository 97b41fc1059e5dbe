"""Cells and host mappings as the API database records them."""

from __future__ import annotations

import enum

from objects.base import Object

CELL0_UUID = "00000000-0000-0000-0000-000000000000"
"""The fixed uuid of cell0, the cell database without hosts or bus that holds what never got a host."""

UNKNOWN_CELLS_HEADER = "Superconductor-Unknown-Cells"
"""Of an HTTP answer that shows what was known of some cells last: ``east;since=2026-01-31T12:00:00Z``, separated by commas,
names percent-encoded.

Those who are not told which cells there are read ``*;since=...``, with the longest silence.
"""


class CellState(enum.StrEnum):
    ENABLED = "enabled"
    DISABLED = "disabled"  # takes no new builds
    DRAINING = "draining"  # takes no new builds, and is being emptied


class CellMapping(Object, frozen=True, kw_only=True):
    """A cell: where its database and its bus are. The URLs may hold passwords: show them only through ``objects.mask``."""

    uuid: str
    name: str
    database_url: str
    transport_url: str
    state: CellState = CellState.ENABLED
    epoch: int = 0

    @property
    def is_cell0(self) -> bool:
        return self.uuid == CELL0_UUID

    def __repr__(self) -> str:
        return f"CellMapping({self.name!r}, {self.uuid}, {self.state})"


class HostMapping(Object, frozen=True, kw_only=True):
    """Which cell a host belongs to. ``id`` is what claims and the host table call the host's (host, node) inventories by."""

    host: str
    cell_uuid: str
