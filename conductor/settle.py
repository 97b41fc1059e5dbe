"""Settle STAGED rows that a conductor left behind: activate or remove them according to the decided mapping."""

from __future__ import annotations

import logging
from collections.abc import Collection

from cells.cell import Cell
from conductor.quarantine import SetAside
from db.api.servers import mappings
from db.cell import instances, staging
from db.sql.engine import ApiDatabase
from objects import lifecycle
from objects.instance import Instance
from service.steps import step

LOG = logging.getLogger(__name__)

SETTLE_PAGE_SIZE = 200


STEP = "settle"
"""The step of dead letters about rows that cannot be settled. Their keys are the UUIDs of the instances."""


def settle(api_database: ApiDatabase, cell: Cell, age: float, aside: SetAside | None = None) -> None:
    """Settle rows of ``cell`` that have been STAGED for ``age`` seconds, page by page.

    The mapping is read after the row. A decided mapping is final, so acting on it late is harmless. A row whose request is still
    queued or driven does not change; a row that the cell refuses to write is set aside.
    """
    aside = aside or SetAside(api_database, "api")
    before, after = cell.now() - age, ""
    while found := cell.read(staging.staged, before, SETTLE_PAGE_SIZE, after):
        aside.run(STEP, lambda uuids: settle_rows(api_database, cell, uuids), sorted(found))
        after = max(found)


def settle_rows(api_database: ApiDatabase, cell: Cell, found: Collection[str]) -> None:
    """Settle those of these rows that are still STAGED and whose mapping is decided."""
    states = api_database.read(mappings.states, found)
    fences: dict[str, int] = {}
    astray: list[str] = []
    for uuid in found:
        state = states.get(uuid)
        if state is None or (state.cell_uuid is None and state.deleted) or state.cell_uuid not in (None, cell.uuid):
            astray.append(uuid)
        elif state.cell_uuid == cell.uuid and not state.deleted:
            fences[uuid] = state.fence
    now = cell.now()
    if astray:
        cell.write(staging.remove_staged, astray)
    if fences:
        done = cell.write(instances.transition, fences, lambda row: _activate(row, fences, cell), now)
        if cell.mapping.is_cell0:  # an overdue request may end without a row: remove copies of earlier tries
            refused = [uuid for uuid, outcome in done.items() if isinstance(outcome, lifecycle.Refused) and outcome.known]
            cell.write(staging.remove_staged, refused, fences)
    for uuid in fences:
        step(LOG, "settled", uuid, cell=cell.name)
    if astray or fences:
        LOG.info("cell %s: settled %d staged rows, removed %d", cell.name, len(fences), len(astray))


def _activate(row: Instance, fences: dict[str, int], cell: Cell) -> lifecycle.Outcome:
    return lifecycle.activate(row, fences[row.uuid], cell0=cell.mapping.is_cell0)
