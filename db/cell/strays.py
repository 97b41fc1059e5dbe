"""Rows that were handed over to a cell: for whoever finds that the API database has lost the hand-over."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from db.audit import cell_rows
from db.cell import instances
from db.cell.tables import builds
from db.cell.tables import instances as instance_table
from db.sql import dialect
from db.sql.connection import CellTransaction
from objects.instance import State
from objects.instance_row import Stray

_SPECS = (
    sa.select(instance_table.c.batch_id, builds.c.spec)
    .join(builds, builds.c.instance_uuid == instance_table.c.uuid)
    .where(instance_table.c.uuid.in_(dialect.uuids_parameter()), instance_table.c.batch_id.is_not(None))
)


def _specs_of(tx: CellTransaction, uuids: Iterable[str]) -> dict[str, str]:
    """The stored specs of the batches that these instances are of, at most a page of them."""
    return {row.batch_id: row.spec for row in tx.execute(_SPECS, {"uuids": sorted(uuids)})}


def list_strays(tx: CellTransaction, uuids: Iterable[str]) -> list[Stray]:
    """Those of these rows that were handed over to this cell, by uuid, with what the API level may have lost of them."""
    rows_read = cell_rows.read_rows(tx, uuids).rows
    rows = [row for _, row in sorted(rows_read.items()) if row.state is not State.STAGED]
    specs: dict[str, str] = {}
    for page in dialect.split_pages([row.uuid for row in rows]):
        specs |= _specs_of(tx, page)
    ended = [row.uuid for row in rows if row.state is State.ERROR]
    faults = {row.uuid: row.fault for row in instances.read(tx, ended)} if ended else {}
    ports = cell_rows.ports_by_row(tx, [row.uuid for row in rows])
    deleted = [row.uuid for row in rows if row.state is State.DELETED]
    snapshots = cell_rows.snapshots_of(tx, deleted) if deleted else {}
    return [
        Stray(
            row=row,
            fault=faults.get(row.uuid),
            spec=specs.get(row.batch_id or ""),
            ports=ports.get(row.uuid, ()),
            snapshot=snapshots.get(row.uuid),
        )
        for row in rows
    ]
