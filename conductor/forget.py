"""Forget servers by the clock that were deleted long ago, as 'superconductor db purge' does."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial

from cells.cell import Cell
from cells.registry import CellRegistry
from db.api import purge as api_purge
from db.cell import purge as cell_purge
from db.sql.engine import ApiDatabase
from objects import errors

LOG = logging.getLogger(__name__)


def forget_deleted(registry: CellRegistry, api_database: ApiDatabase, age: float) -> None:
    """One round: servers deleted ``age`` seconds ago. Those of a cell that does not answer wait for a later one."""
    done: set[str] = set()
    for cell in _cells(registry):
        try:
            _every_page(partial(cell.write, cell_purge.rows, cell.now() - age))
        except (errors.CellUnavailable, errors.DatabaseUnavailable) as error:
            LOG.info("deleted servers of cell %s are kept for now: %s", cell.name, error)
            continue
        done.add(cell.uuid)
    forgotten = _every_page(partial(api_database.write, api_purge.servers, api_database.now() - age, done))
    if forgotten:
        LOG.info("forgot %d servers that were deleted long ago", forgotten)


def _cells(registry: CellRegistry) -> list[Cell]:
    cells = list(registry.cells())
    with contextlib.suppress(errors.NotFound):
        cells.append(registry.cell0)
    return cells


def _every_page(page: Callable[[], int]) -> int:
    total = 0
    while count := page():
        total += count
    return total
