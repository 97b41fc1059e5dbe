"""The cloud at a glance: how many hosts, how much room, and what of it cannot be judged."""

from __future__ import annotations

import numpy as np

from beside_nova.state import NovaCellView, NovaState
from objects.base import Object


class CellOverview(Object, frozen=True, kw_only=True):
    """``hosts``: nodes that report there. ``judged``: those on which requests are judged; amounts are of these.

    ``up``: of the judged ones, those that are up and enabled. vCPUs, MiB, GiB; capacity with ratios and without what is reserved.
    ``error``: why the cell could not be read.
    """

    name: str
    uuid: str
    disabled: bool
    hosts: int
    judged: int
    up: int
    servers: int
    vcpus: float
    vcpus_used: float
    memory_mb: float
    memory_mb_used: float
    disk_gb: float
    disk_gb_used: float
    error: str = ""


class CloudOverview(Object, frozen=True, kw_only=True):
    """``revisions``: of the schemas, by database. ``left_out``: hosts on which no request is judged, with the reason."""

    revisions: dict[str, str]
    cells: tuple[CellOverview, ...]
    left_out: dict[str, str]
    aggregates: int
    zones: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether all cells were read."""
        return not any(cell.error for cell in self.cells)


def overview_of(state: NovaState) -> CloudOverview:
    """The state as it was last read."""
    with state.table.lock:
        cells = tuple(_cell_overview(state, view) for view in state.cells.values())
    opened = [view.database for view in state.cells.values() if view.database is not None and not view.error]
    databases = (state.databases.api, state.databases.placement, *opened)
    return CloudOverview(
        revisions={database.name: database.revision for database in databases},
        cells=cells,
        left_out=dict(sorted(state.left_out.items())),
        aggregates=len(state.facts.aggregates),
        zones=tuple(sorted(state.zone_names)),
    )


def _cell_overview(state: NovaState, view: NovaCellView) -> CellOverview:
    table = state.table
    rows = table.of_cell(table.cell_number(view.cell.uuid))
    rows = rows[table.eligible[rows]]
    up = table.hosts_up(state.plan_context().alive_since)[rows]

    def total_of(column: str) -> float:
        return round(float(getattr(table, column)[rows].sum()), 3)

    return CellOverview(
        name=view.cell.name,
        uuid=view.cell.uuid,
        disabled=view.cell.disabled,
        hosts=len(view.nodes),
        judged=rows.size,
        up=int(np.count_nonzero(up)),
        servers=int(table.instances[rows].sum()),
        vcpus=total_of("cap_vcpus"),
        vcpus_used=total_of("claimed_vcpus"),
        memory_mb=total_of("cap_memory_mb"),
        memory_mb_used=total_of("claimed_memory_mb"),
        disk_gb=total_of("cap_disk_gb"),
        disk_gb_used=total_of("claimed_disk_gb"),
        error=view.error,
    )
