"""Forget servers that were deleted long ago: their rows in the cells first, then what the API database knows of them.

A tombstone keeps a message that comes very late from bringing its server back, so ``before`` must be longer ago than any process
may pause. Each call is a page in a transaction of its own and says how much it forgot; it may be interrupted and repeated.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy import Connection

from db import dialect
from db.tables import api, cell

PAGE = dialect.IN_LIST

_HANGING_ON_ROWS = (cell.builds, cell.tags, cell.block_device_mappings, cell.instance_actions, cell.instance_faults)
_HANGING_ON_BATCHES = (api.request_specs, api.request_secrets, api.decisions)

_OLD_ROWS = (
    sa.select(cell.instances.c.uuid)
    .where(cell.instances.c.state == "deleted", cell.instances.c.terminated_at < sa.bindparam("before"))
    .limit(PAGE)
)


def rows(tx: Connection, before: float) -> int:
    """In a cell: forget a page of servers deleted before ``before`` (seconds since the epoch); return how many."""
    uuids = list(tx.execute(_OLD_ROWS, {"before": before}).scalars())
    if not uuids:
        return 0
    for table in _HANGING_ON_ROWS:
        tx.execute(sa.delete(table).where(table.c.instance_uuid.in_(uuids)))
    return tx.execute(
        sa.delete(cell.instances).where(cell.instances.c.uuid.in_(uuids), cell.instances.c.state == "deleted")
    ).rowcount


def servers(tx: Connection, before: float, cells: Collection[str]) -> int:
    """In the API database: the same of servers of these cells, by uuid, and of those that have none now, with their batches."""
    mappings = api.instance_mappings
    query = (
        sa.select(mappings.c.instance_uuid, mappings.c.batch_id)
        .where(
            mappings.c.deleted == sa.true(),  # said so that MariaDB goes by the index
            mappings.c.state == "deleted",
            mappings.c.terminated_at < before,
            sa.or_(
                mappings.c.cell_uuid.is_(None),
                mappings.c.cell_uuid.in_(sorted(cells)),
                mappings.c.cell_uuid.not_in(sa.select(api.cell_mappings.c.uuid)),
            ),
        )
        .limit(PAGE)
    )
    found = tx.execute(query).all()
    if not found:
        return 0
    uuids, batches = [row.instance_uuid for row in found], sorted({row.batch_id for row in found})
    forgotten = tx.execute(sa.delete(mappings).where(mappings.c.instance_uuid.in_(uuids))).rowcount
    used = set(tx.execute(sa.select(mappings.c.batch_id).where(mappings.c.batch_id.in_(batches))).scalars())
    if ended := [batch for batch in batches if batch not in used]:
        for table in _HANGING_ON_BATCHES:
            tx.execute(sa.delete(table).where(table.c.batch_id.in_(ended)))
    return forgotten
