"""Cells of which nothing is heard: nobody can say whether they have room."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from objects.cell import CellState
from scheduler.plan.request import Request
from scheduler.table.host_table import HostTable
from scheduler.table.hosts import Hosts


def unheard(table: HostTable, alive_since: float, after: float) -> dict[int, str]:
    """Cells, by number, none of whose hosts was heard of since ``alive_since`` and one was after ``after``, with their names.

    Such a cell's bus or database may be away rather than all of its hosts. Hosts whose agents have said that they stop, or that
    were called down, tell nothing.
    """
    latest = np.full(len(table.cells), -np.inf)
    rows = np.flatnonzero(table.eligible[: table.size])
    np.maximum.at(latest, table.cell[rows], table.heard_at[rows])
    found = np.flatnonzero((latest > after) & (latest < alive_since))
    return {cell: table.cells[cell].name for cell in found.tolist()}


def unseen(table: HostTable, request: Request, ages: Mapping[str, float | None]) -> set[str]:
    """Names of cells that this process never had an answer from, and that have a host with room for one server by the ledger.

    ``ages``: None for a cell that never answered. Of its hosts only claims, zones and names are known; other filters are not asked.
    """
    silent = [
        number
        for number, cell in enumerate(table.cells)
        if cell.state is CellState.ENABLED and ages.get(cell.name, 0.0) is None and number not in request.excluded_cells
    ]
    if request.only_cell is not None:
        silent = [number for number in silent if number == request.only_cell]
    there = np.isin(table.home[: table.size], silent) & (table.cell[: table.size] < 0) & (table.inventory[: table.size] > 0)
    if request.zone is not None:
        there &= table.zone[: table.size] == request.zone
    rows = np.flatnonzero(there)
    hosts = Hosts(table, request, rows)
    room = hosts.room("vcpus") >= request.vcpus
    room &= (hosts.room("memory_mb") >= request.memory_mb) & (hosts.room("disk_gb") >= request.disk_gb)
    if request.forced:
        room &= hosts.named(request.spec.force_hosts, request.spec.force_nodes)
    return {table.cells[number].name for number in table.home[rows[room]].tolist()}
