"""Map instances that a cell's database has and the API database knows nothing of, after one of the two was restored or lost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence

from cells.cell import Cell
from cells.registry import CellRegistry
from db import audit_cell, audit_servers, dialect, instance_specs, repair
from db.audit_cell import Row
from db.audit_servers import Record
from db.engine import Database
from objects import errors
from objects.base import Object
from objects.instance import State

PAGE = dialect.IN_LIST

IN_FORCE = frozenset({State.SCHEDULED, State.BUILDING, State.ACTIVE, State.ERROR})
"""Never STAGED, which may be a copy that nobody handed over, nor what is deleted or on its way there."""


class Mapped(Object, frozen=True, kw_only=True):
    """``refused``: instances that a person has to decide about, and why. ``more``: some were left for the next time."""

    mapped: int = 0
    refused: tuple[str, ...] = ()
    more: bool = False


def map_instances(registry: CellRegistry, api_database: Database, cell: Cell, most: int | None = None) -> Mapped:
    """Map the instances of a cell that have no mapping to it, ``most`` of them at most.

    May be repeated, and run beside everything else: what is mapped by then is passed over. Of an instance that another cell has a
    row of as well nothing is done. Raises CellUnavailable where a cell cannot be asked: it might have that row.
    """
    mapped, refused, after = 0, list[str](), ""
    while keys := cell.read(audit_cell.rows_after, after, PAGE):
        rows = _unmapped(api_database, cell.read(audit_cell.rows, keys).rows)
        twins = _elsewhere(registry, cell, rows)
        refused += [f"Instance {uuid} is in cell '{cell.name}' and in cell '{twins[uuid]}'" for uuid in sorted(twins)]
        found = [row for uuid, row in sorted(rows.items()) if uuid not in twins]
        take = found if most is None else found[: most - mapped]
        mapped += _map(api_database, cell, take)
        if len(take) < len(found):
            return Mapped(mapped=mapped, refused=tuple(refused), more=True)
        after = keys[-1]
    return Mapped(mapped=mapped, refused=tuple(refused))


def _unmapped(api_database: Database, rows: Mapping[str, Row]) -> dict[str, Row]:
    """Those in force that the API database has no server for, or one that is neither queued nor anywhere, nor deleted."""
    _, records = api_database.read(audit_servers.records, list(rows))
    return {uuid: row for uuid, row in rows.items() if row.state in IN_FORCE and _lost(records.get(uuid))}


def _lost(record: Record | None) -> bool:
    return record is None or (record.cell_uuid is None and not record.deleted and not record.requested)


def _elsewhere(registry: CellRegistry, cell: Cell, uuids: Iterable[str]) -> dict[str, str]:
    """Of these the ones that another cell has a row of that was handed over to it, a deleted one too; with that cell's name."""
    wanted, found = sorted(uuids), dict[str, str]()
    for other in _others(registry, cell) if wanted else ():
        rows = other.read(audit_cell.rows, wanted).rows
        found |= {uuid: other.name for uuid, row in rows.items() if row.state is not State.STAGED}
    return found


def _others(registry: CellRegistry, cell: Cell) -> Sequence[Cell]:
    """All other cells, cell0 as well if there is one. Raises CellUnavailable where one cannot be used at all."""
    for reason in registry.broken().values():
        raise errors.CellUnavailable(reason)
    cells = list(registry.cells())
    with contextlib.suppress(errors.NotFound):
        cells.append(registry.cell0)
    return [other for other in cells if other.uuid != cell.uuid]


def _map(api_database: Database, cell: Cell, rows: Sequence[Row]) -> int:
    """With the specs that the API database has lost: lists and shows need them, and so does a claim that is to be restored."""
    if not rows:
        return 0
    specs, now = cell.read(instance_specs.of_rows, [row.uuid for row in rows]), time.time()
    api_database.write(instance_specs.put_back, specs, now)
    return api_database.write(repair.adopt, rows, cell.uuid, now)
