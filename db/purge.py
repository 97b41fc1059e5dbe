"""Forget servers that were deleted long ago: their rows in the cells first, then what the API database knows of them.

A tombstone keeps a message that comes very late from bringing its server back, so ``before`` must be longer ago than any process
may pause. Each call is a page in a transaction of its own; it may be interrupted and repeated. What is found and what is forgotten
are separate steps too, so that a copy can be kept in between (``db/archive.py``): nothing changes a tombstone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from db import dialect
from db.tables import api, cell

PAGE = dialect.IN_LIST
"""Servers that one transaction forgets, at most."""

HANGING_ON_ROWS = (cell.builds, cell.tags, cell.block_device_mappings, cell.instance_actions, cell.instance_faults)
"""What there is in a cell of a server, besides its row and its batch's secrets."""
_HANGING_ON_BATCHES = (api.request_specs, api.request_tags, api.request_metadata, api.request_secrets, api.decisions)

_OLD_ROWS = (
    sa.select(cell.instances.c.uuid)
    .where(cell.instances.c.state == "deleted", cell.instances.c.terminated_at < sa.bindparam("before"))
    .limit(sa.bindparam("most"))
)


# -- in a cell, and in cell0 -------------------------------------------------------------------------------------------------


def rows(tx: Connection, before: float) -> int:
    """Forget a page of servers deleted before ``before`` (seconds since the epoch); return how many."""
    return forget_rows(tx, old_rows(tx, before))


def old_rows(tx: Connection, before: float, most: int = PAGE) -> Sequence[str]:
    """The uuids of ``most`` servers that were deleted before ``before``, in no order."""
    return tx.execute(_OLD_ROWS, {"before": before, "most": most}).scalars().all()


def forget_rows(tx: Connection, uuids: Sequence[str]) -> int:
    """Forget these, a page at most, as far as they are there; return how many were. They must have been found by ``old_rows``."""
    if not uuids:
        return 0
    for table in HANGING_ON_ROWS:
        tx.execute(sa.delete(table).where(table.c.instance_uuid.in_(uuids)))
    return tx.execute(
        sa.delete(cell.instances).where(cell.instances.c.uuid.in_(uuids), cell.instances.c.state == "deleted")
    ).rowcount


# -- in the API database -----------------------------------------------------------------------------------------------------


def servers(tx: Connection, before: float, cells: Collection[str]) -> int:
    """The same of servers of these cells, by uuid, and of those that have none now, with their batches."""
    return forget_servers(tx, old_servers(tx, before, cells))


def old_servers(tx: Connection, before: float, cells: Collection[str], most: int = PAGE) -> Sequence[str]:
    """The uuids of ``most`` servers of these cells, or of none that there is, that were deleted before ``before``."""
    mappings = api.instance_mappings
    query = (
        sa.select(mappings.c.instance_uuid)
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
        .limit(most)
    )
    return tx.execute(query).scalars().all()


def forget_servers(tx: Connection, uuids: Sequence[str]) -> int:
    """Forget these, a page at most, and batches of which nothing is left; return how many servers were there."""
    if not uuids:
        return 0
    mappings = api.instance_mappings
    batches = batches_of(tx, uuids)
    forgotten = tx.execute(sa.delete(mappings).where(mappings.c.instance_uuid.in_(uuids))).rowcount
    used = set(tx.execute(sa.select(mappings.c.batch_id).where(mappings.c.batch_id.in_(batches))).scalars())
    if ended := [batch for batch in batches if batch not in used]:
        for table in _HANGING_ON_BATCHES:
            tx.execute(sa.delete(table).where(table.c.batch_id.in_(ended)))
    return forgotten


def batches_of(tx: Connection, uuids: Sequence[str]) -> list[str]:
    """The batches of these servers, in the order of their ids."""
    mappings = api.instance_mappings
    return sorted(set(tx.execute(sa.select(mappings.c.batch_id).where(mappings.c.instance_uuid.in_(uuids))).scalars()))
