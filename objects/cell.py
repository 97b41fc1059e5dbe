"""Cells and host mappings in the API database."""

from __future__ import annotations

import enum

from objects.base import Object

CELL0_UUID = "00000000-0000-0000-0000-000000000000"
"""The fixed uuid of cell0, a cell database without hosts or bus. It holds servers that never got a host."""

UNKNOWN_CELLS_HEADER = "Superconductor-Unknown-Cells"
"""Header of an HTTP answer with outdated data of some cells: ``east;since=2026-01-31T12:00:00Z``, separated by commas, with
percent-encoded names.

Callers who may not know the cells get ``*;since=...``, with the longest silence."""


class CellState(enum.StrEnum):
    ENABLED = "enabled"
    DISABLED = "disabled"  # takes no new builds
    DRAINING = "draining"  # takes no new builds, and is being emptied


class CellMapping(Object, frozen=True, kw_only=True):
    """A cell with the URLs of its database and its bus. The URLs may hold passwords: show them only through ``objects.mask``."""

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
    """The cell that a host belongs to."""

    host: str
    cell_uuid: str
