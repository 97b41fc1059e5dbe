"""Forget servers that were deleted long ago: their rows in the cells first, then what the API database knows of them.

A tombstone keeps a message that comes very late from bringing its server back, so ``before`` must be longer ago than any process
may pause. Each call is a page in a transaction of its own; it may be interrupted and repeated. What is found and what is forgotten
are separate steps too, so that a copy can be kept in between (``db/archive.py``): nothing changes a tombstone.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from db import archive
from db.cell.tables import block_device_mappings, builds, instance_actions, instance_faults, instances, snapshots, tags
from db.sql import dialect
from db.sql.connection import CellTransaction

SERVERS_PER_TRANSACTION = dialect.IN_LIST_SIZE
"""Maximum number of servers that one transaction purges."""

INSTANCE_TABLES = (builds, tags, block_device_mappings, instance_actions, instance_faults, snapshots)
"""Tables of a cell with rows of a server, besides its instance row and its batch's secrets."""

_OLD_ROWS = (
    sa.select(instances.c.uuid)
    .where(instances.c.state == "deleted", instances.c.terminated_at < sa.bindparam("before"))
    .limit(sa.bindparam("most"))
)


def purge_rows(tx: CellTransaction, before: float) -> int:
    """Forget a page of servers deleted before ``before`` (seconds since the epoch); return how many."""
    return forget_rows(tx, old_rows(tx, before))


def old_rows(tx: CellTransaction, before: float, most: int = SERVERS_PER_TRANSACTION) -> Sequence[str]:
    """The uuids of ``most`` servers that were deleted before ``before``, in no order."""
    return tx.execute(_OLD_ROWS, {"before": before, "most": most}).scalars().all()


def forget_rows(tx: CellTransaction, uuids: Sequence[str]) -> int:
    """Forget these, a page at most, as far as they are there; return how many were. They must have been found by ``old_rows``."""
    if not uuids:
        return 0
    for table in INSTANCE_TABLES:
        tx.execute(sa.delete(table).where(table.c.instance_uuid.in_(uuids)))
    return tx.execute(sa.delete(instances).where(instances.c.uuid.in_(uuids), instances.c.state == "deleted")).rowcount


_KEYS = (instances.c.uuid, *(table.c.instance_uuid for table in INSTANCE_TABLES))


def lines_of_rows(tx: CellTransaction, uuids: Sequence[str]) -> list[str]:
    """Everything about these servers, a line of JSON for each row. What tenants gave in confidence is never among them."""
    return [line for key in _KEYS for line in archive.lines_of(tx, key, uuids)]
