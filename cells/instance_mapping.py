"""Map instances that a cell's database has and the API database knows nothing of, after one of the two was restored or lost."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from cells.cell import Cell
from cells.registry import CellRegistry
from db.api.claims.claims import Ledger
from db.api.reconcile import adoption
from db.audit import cell_rows, servers
from db.audit.servers import Record
from db.cell import row_repair, strays
from db.cell.row_repair import Read
from db.sql import dialect
from db.sql.engine import ApiDatabase
from objects import errors
from objects.base import Object
from objects.instance import State
from objects.instance_row import InstanceRow

PAGE = dialect.IN_LIST_SIZE

IN_FORCE = frozenset({State.SCHEDULED, State.BUILDING, State.ACTIVE, State.ERROR})
"""Never STAGED, which may be a copy that nobody handed over, nor what is deleted or on its way there."""


class Mapped(Object, frozen=True, kw_only=True):
    """``refused``: instances that a person has to decide about, and why. ``more``: some were left for the next time."""

    mapped: int = 0
    refused: tuple[str, ...] = ()
    more: bool = False


def adopt_rows(ledger: Ledger, cell: Cell, uuids: Iterable[str]) -> list[str]:
    """Give the API level everything it has lost of these rows of a cell: mapping, request spec, quota and claim; returns the uuids.

    A row that was never handed over is left alone, and so is one whose server is decided elsewhere
    (``db/api/reconcile/adoption.py``). The feed tells of the adopted rows again. Raises CellUnavailable.
    """
    adopted: list[str] = []
    ordered_uuids = sorted(set(uuids))
    for start in range(0, len(ordered_uuids), adoption.ROWS_PER_TRANSACTION):
        strays_read = cell.read(strays.list_strays, ordered_uuids[start : start + adoption.ROWS_PER_TRANSACTION])
        if not strays_read:
            continue
        done = ledger.write(adoption.adopt_strays, strays_read, cell.uuid, ledger.database.current_time())
        rows = {stray.row.uuid: stray.row for stray in strays_read}
        if done and not cell.current_mapping.is_cell0:
            read_by_uuid = {uuid: Read(version=rows[uuid].version, seen=max(0, rows[uuid].version - 1)) for uuid in done}
            cell.write(row_repair.retell_rows, read_by_uuid, cell.current_time())
        adopted += done
    return adopted


def map_instances(
    registry: CellRegistry, ledger: Ledger, cell: Cell, most: int | None = None, without: Collection[str] = ()
) -> Mapped:
    """Adopt the instances of a cell that are in force there and that the API level has in no cell, ``most`` of them at most.

    May be repeated, and run beside everything else: what is mapped by then is passed over. Of an instance that another cell has a
    row of as well nothing is done. Raises CellUnavailable where a cell cannot be asked: it might have that row.
    """
    mapped, refused, after = 0, list[str](), ""
    api_database = ledger.database
    while keys := cell.read(cell_rows.rows_after, after, PAGE):
        rows = _list_unmapped(api_database, cell.read(cell_rows.read_rows, keys).rows)
        twins = _cells_elsewhere(registry, cell, rows, without)
        refused += [f"Instance {uuid} is in cell '{cell.name}' and in cell '{twins[uuid]}'" for uuid in sorted(twins)]
        rows_to_map = [row for uuid, row in sorted(rows.items()) if uuid not in twins]
        take = rows_to_map if most is None else rows_to_map[: most - mapped]
        mapped += len(adopt_rows(ledger, cell, [row.uuid for row in take]))
        if len(take) < len(rows_to_map):
            return Mapped(mapped=mapped, refused=tuple(refused), more=True)
        after = keys[-1]
    return Mapped(mapped=mapped, refused=tuple(refused))


def _list_unmapped(api_database: ApiDatabase, rows: Mapping[str, InstanceRow]) -> dict[str, InstanceRow]:
    """Those in force that the API database has no server for, or one that is in no cell and not deleted."""
    _, records = api_database.read(servers.read_records, list(rows))
    return {uuid: row for uuid, row in rows.items() if row.state in IN_FORCE and _is_lost(records.get(uuid))}


def _is_lost(record: Record | None) -> bool:
    return record is None or (record.cell_uuid is None and not record.deleted)


def _cells_elsewhere(registry: CellRegistry, cell: Cell, uuids: Iterable[str], without: Collection[str]) -> dict[str, str]:
    """Of these the ones that another cell has a row of that was handed over to it, a deleted one too; with that cell's name."""
    ordered_uuids, cell_by_row = sorted(uuids), dict[str, str]()
    for other in _other_cells(registry, cell, without) if ordered_uuids else ():
        rows = other.read(cell_rows.read_rows, ordered_uuids).rows
        cell_by_row |= {uuid: other.name for uuid, row in rows.items() if row.state is not State.STAGED}
    return cell_by_row


def _other_cells(registry: CellRegistry, cell: Cell, without: Collection[str]) -> Sequence[Cell]:
    """All other cells, cell0 as well if there is one. Raises CellUnavailable where one cannot be used at all."""
    for name, reason in registry.broken_by_name().items():
        if name not in without:
            raise errors.CellUnavailable(reason)
    cells = list(registry.list_cells())
    with contextlib.suppress(errors.NotFound):
        cells.append(registry.cell0)
    return [other for other in cells if other.uuid != cell.uuid and other.name not in without]
