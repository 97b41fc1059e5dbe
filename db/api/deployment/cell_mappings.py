"""Cell mappings in the API database: the cells with their URLs and states."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from db.api.claims import inventories
from db.api.rows import epochs, ledger
from db.api.rows.epochs import Epoch
from db.api.rows.tables import cell_mappings, host_mappings, instance_mappings
from db.sql import by_name
from db.sql.connection import ApiTransaction
from db.sql.readable import convert_readable, read_one
from objects import errors
from objects.cell import CellMapping, CellState


class HasHosts(errors.Conflict):
    """Hosts are mapped to the cell."""


class HasServers(errors.Conflict):
    """The cell has servers that are not deleted."""


class UnfinishedWork(errors.Conflict):
    """The cell still has builds or deletes to finish."""


def create(tx: ApiTransaction, mapping: CellMapping) -> None:
    """Add a cell. Raises Conflict if its uuid or name is taken."""
    by_name.insert_row(tx, cell_mappings, _column_values(mapping), f"Cell '{mapping.name}'")
    epochs.bump_epoch(tx, Epoch.CELLS)


def get(tx: ApiTransaction, uuid: str) -> CellMapping:
    """Return the cell with this uuid. Raises NotFound."""
    row = tx.execute(sa.select(cell_mappings).where(cell_mappings.c.uuid == uuid)).first()
    return read_one(by_name.require_row(row, f"Cell '{uuid}'"), _mapping_from_row, cell_mappings)


def lock_cell(tx: ApiTransaction, uuid: str) -> bool:
    """Whether the cell exists. If it does, its row stays locked, so that nobody deletes it before this transaction ends."""
    query = sa.select(cell_mappings.c.uuid).where(cell_mappings.c.uuid == uuid).with_for_update()
    return tx.execute(query).first() is not None


def list_all(tx: ApiTransaction) -> list[CellMapping]:
    """All cells by name, including cell0. One whose row cannot be read is there, disabled and with URLs that nothing can open:
    left out it would look deleted.
    """
    rows = tx.execute(sa.select(cell_mappings).order_by(cell_mappings.c.name)).all()
    mapping_by_uuid = {mapping.uuid: mapping for mapping in convert_readable(rows, _mapping_from_row, cell_mappings)}
    return [mapping_by_uuid.get(row.uuid) or _unusable_mapping(row.uuid) for row in rows]


def _unusable_mapping(uuid: object) -> CellMapping:
    return CellMapping(uuid=str(uuid), name=f"damaged {uuid}", database_url="", transport_url="", state=CellState.DISABLED)


def update_mapping(tx: ApiTransaction, mapping: CellMapping) -> CellMapping:
    """Replace name, URLs and state if the row still has the mapping's epoch; return the mapping with the next epoch.

    Raises NotFound, and Conflict if the new name is taken or the row was changed since it was read.
    """
    changed = msgspec.structs.replace(mapping, epoch=mapping.epoch + 1)
    same = (cell_mappings.c.uuid == mapping.uuid, cell_mappings.c.epoch == mapping.epoch)
    statement = sa.update(cell_mappings).where(*same).values(_column_values(changed))
    try:
        by_name.update_row(tx, statement, {}, f"Cell '{mapping.name}'")
    except errors.NotFound:
        get(tx, mapping.uuid)
        raise errors.Conflict(f"Cell '{mapping.name}' was changed by somebody else meanwhile: look at it, and try again") from None
    epochs.bump_epoch(tx, Epoch.CELLS)
    if changed.state is CellState.DISABLED:  # last: a concurrent claim either commits before this, or finds the rows changed
        inventories.touch_cell(tx, ledger.stamp_once(tx, f"cell {changed.name} disabled"), changed.uuid)
    return changed


def delete(tx: ApiTransaction, uuid: str, *, failed_with: str | None = None) -> None:
    """Delete the cell's mapping.

    ``failed_with``: servers in ERROR with this fault do not count, because the removal of the cell failed them.
    Raises NotFound, and the Conflicts HasHosts, HasServers or UnfinishedWork.
    """
    name = get(tx, uuid).name
    if count := _count_rows(tx, host_mappings, host_mappings.c.cell_uuid == uuid):
        raise HasHosts(f"Cell '{name}' still has {count} hosts: delete them, or give --with-hosts")
    check_empty(tx, uuid, failed_with=failed_with)
    by_name.delete(tx, sa.delete(cell_mappings).where(cell_mappings.c.uuid == uuid), f"Cell '{name}'")
    epochs.bump_epoch(tx, Epoch.CELLS)


def check_empty(tx: ApiTransaction, uuid: str, *, failed_with: str | None = None) -> None:
    """Raise HasServers while servers are mapped to the cell, UnfinishedWork while it has not confirmed their deletes, or NotFound.

    ``failed_with``: see ``delete``.
    """
    name = get(tx, uuid).name
    of_it = instance_mappings.c.cell_uuid == uuid
    live = [of_it, instance_mappings.c.deleted == sa.false()]
    if failed_with is not None:
        live.append(sa.or_(instance_mappings.c.state != "error", sa.func.coalesce(instance_mappings.c.fault, "") != failed_with))
    unconfirmed = [of_it, instance_mappings.c.deleted == sa.true(), instance_mappings.c.state != "deleted"]
    if count := _count_rows(tx, instance_mappings, *live):
        raise HasServers(f"Cell '{name}' still has {count} servers: delete them first")
    if count := _count_rows(tx, instance_mappings, *unconfirmed):
        raise UnfinishedWork(f"Cell '{name}' has not confirmed {count} deletes yet: wait until their guests are gone")


def _count_rows(tx: ApiTransaction, table: sa.Table, *conditions: sa.ColumnElement[bool]) -> int:
    return tx.execute(sa.select(sa.func.count()).select_from(table).where(*conditions)).scalar_one()


def _column_values(mapping: CellMapping) -> dict[str, Any]:
    return msgspec.structs.asdict(mapping) | {"state": str(mapping.state)}


def _mapping_from_row(row: sa.Row[Any]) -> CellMapping:
    return CellMapping(**{**row._mapping, "state": CellState(row.state)})
