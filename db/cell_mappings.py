"""Cell mappings in the API database: which cells there are, and where."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from db import epochs, named
from db.epochs import Epoch
from db.tables.api import cell_mappings, host_mappings, instance_mappings
from objects import errors
from objects.cell import CellMapping, CellState


def create(tx: Connection, mapping: CellMapping) -> None:
    """Raises Conflict if its uuid or name is taken."""
    named.insert(tx, cell_mappings, _values(mapping), f"Cell '{mapping.name}'")
    epochs.bump(tx, Epoch.CELLS)


def get(tx: Connection, uuid: str) -> CellMapping:
    """Raises NotFound."""
    return _mapping(named.found(tx.execute(sa.select(cell_mappings).where(cell_mappings.c.uuid == uuid)).first(), f"Cell '{uuid}'"))


def list_all(tx: Connection) -> list[CellMapping]:
    """By name, cell0 among them."""
    return [_mapping(row) for row in tx.execute(sa.select(cell_mappings).order_by(cell_mappings.c.name))]


def update(tx: Connection, mapping: CellMapping) -> CellMapping:
    """Replace name, URLs and state of what was read with this epoch, and return it with the next one.

    Raises NotFound, and Conflict if the new name is taken or somebody has changed the mapping since it was read.
    """
    changed = msgspec.structs.replace(mapping, epoch=mapping.epoch + 1)
    same = (cell_mappings.c.uuid == mapping.uuid, cell_mappings.c.epoch == mapping.epoch)
    statement = sa.update(cell_mappings).where(*same).values(_values(changed))
    try:
        named.update(tx, statement, {}, f"Cell '{mapping.name}'")
    except errors.NotFound:
        get(tx, mapping.uuid)
        raise errors.Conflict(f"Cell '{mapping.name}' was changed by somebody else meanwhile: look at it, and try again") from None
    epochs.bump(tx, Epoch.CELLS)
    return changed


def delete(tx: Connection, uuid: str) -> None:
    """Raises NotFound, and Conflict while hosts are mapped to it or servers live in it."""
    name = get(tx, uuid).name
    for table, kind in ((host_mappings, "hosts"), (instance_mappings, "servers")):
        query = sa.select(sa.func.count()).select_from(table).where(table.c.cell_uuid == uuid)
        if table is instance_mappings:
            query = query.where(sa.not_(table.c.deleted))
        if count := tx.execute(query).scalar():
            raise errors.Conflict(f"Cell '{name}' still has {count} {kind}")
    named.delete(tx, sa.delete(cell_mappings).where(cell_mappings.c.uuid == uuid), f"Cell '{name}'")
    epochs.bump(tx, Epoch.CELLS)


def _values(mapping: CellMapping) -> dict[str, Any]:
    return msgspec.structs.asdict(mapping) | {"state": str(mapping.state)}


def _mapping(row: sa.Row[Any]) -> CellMapping:
    return CellMapping(**{**row._mapping, "state": CellState(row.state)})
