"""Settle STAGED rows that a conductor left behind: activate or remove them according to the decided mapping."""

from __future__ import annotations

import logging
from collections.abc import Collection

from cells.cell import Cell
from conductor.quarantine import Quarantine
from db.api.servers import mappings
from db.cell import instances, staging
from db.sql.engine import ApiDatabase
from objects import lifecycle
from objects.instance import Instance
from service.logs import log_step

LOG = logging.getLogger(__name__)

SETTLE_PAGE_SIZE = 200


STEP = "settle"
"""The step of dead letters about rows that cannot be settled. Their keys are the UUIDs of the instances."""


def settle_staged(api_database: ApiDatabase, cell: Cell, age: float, aside: Quarantine | None = None) -> None:
    """Settle rows of ``cell`` that have been STAGED for ``age`` seconds, page by page.

    The mapping is read after the row. A decided mapping is final, so acting on it late is harmless. A row whose request is still
    queued or driven does not change; a row that the cell refuses to write is set aside.
    """
    aside = aside or Quarantine(api_database, "api")
    before, after = cell.current_time() - age, ""
    while staged_uuids := cell.read(staging.list_staged, before, SETTLE_PAGE_SIZE, after):
        aside.run(STEP, lambda uuids: settle_rows(api_database, cell, uuids), sorted(staged_uuids))
        after = max(staged_uuids)


def settle_rows(api_database: ApiDatabase, cell: Cell, staged_uuids: Collection[str]) -> None:
    """Settle those of these rows that are still STAGED and whose mapping is decided."""
    states = api_database.read(mappings.states_by_uuid, staged_uuids)
    fences: dict[str, int] = {}
    astray: list[str] = []
    for uuid in staged_uuids:
        state = states.get(uuid)
        if state is None or (state.cell_uuid is None and state.deleted) or state.cell_uuid not in (None, cell.uuid):
            astray.append(uuid)
        elif state.cell_uuid == cell.uuid and not state.deleted:
            fences[uuid] = state.fence
    now = cell.current_time()
    if astray:
        cell.write(staging.remove_staged, astray)
    if fences:
        done = cell.write(instances.transition_rows, fences, lambda row: _activate_row(row, fences, cell), now)
        if cell.current_mapping.is_cell0:  # an overdue request may end without a row: remove copies of earlier tries
            refused = [uuid for uuid, outcome in done.items() if isinstance(outcome, lifecycle.Refused) and outcome.known]
            cell.write(staging.remove_staged, refused, fences)
    for uuid in fences:
        log_step(LOG, "settled", uuid, cell=cell.name)
    if astray or fences:
        LOG.info("cell %s: settled %d staged rows, removed %d", cell.name, len(fences), len(astray))


def _activate_row(row: Instance, fences: dict[str, int], cell: Cell) -> lifecycle.Outcome:
    return lifecycle.activate_row(row, fences[row.uuid], cell0=cell.current_mapping.is_cell0)
