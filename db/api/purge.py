"""Forget servers that were deleted long ago, after their cells have (``db/cell/purge.py``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from db import archive
from db.api import tables
from db.sql import dialect
from db.sql.connection import ApiTransaction

PAGE = dialect.IN_LIST
"""Servers that one transaction forgets, at most."""

_HANGING_ON_BATCHES = (tables.request_specs, tables.request_tags, tables.request_metadata, tables.request_secrets, tables.decisions)


def servers(tx: ApiTransaction, before: float, cells: Collection[str]) -> int:
    """Forget a page of servers of these cells, by uuid, and of those that have none now, with their batches; return how many."""
    return forget_servers(tx, old_servers(tx, before, cells))


def old_servers(tx: ApiTransaction, before: float, cells: Collection[str], most: int = PAGE) -> Sequence[str]:
    """The uuids of ``most`` servers of these cells, or of none that there is, that were deleted before ``before``."""
    mappings = tables.instance_mappings
    query = (
        sa.select(mappings.c.instance_uuid)
        .where(
            mappings.c.deleted == sa.true(),  # said so that MariaDB goes by the index
            mappings.c.state == "deleted",
            mappings.c.terminated_at < before,
            sa.or_(
                mappings.c.cell_uuid.is_(None),
                mappings.c.cell_uuid.in_(sorted(cells)),
                mappings.c.cell_uuid.not_in(sa.select(tables.cell_mappings.c.uuid)),
            ),
        )
        .limit(most)
    )
    return tx.execute(query).scalars().all()


def forget_servers(tx: ApiTransaction, uuids: Sequence[str]) -> int:
    """Forget these, a page at most, and batches of which nothing is left; return how many servers were there."""
    if not uuids:
        return 0
    mappings = tables.instance_mappings
    batches = batches_of(tx, uuids)
    forgotten = tx.execute(sa.delete(mappings).where(mappings.c.instance_uuid.in_(uuids))).rowcount
    used = set(tx.execute(sa.select(mappings.c.batch_id).where(mappings.c.batch_id.in_(batches))).scalars())
    if ended := [batch for batch in batches if batch not in used]:
        for table in _HANGING_ON_BATCHES:
            tx.execute(sa.delete(table).where(table.c.batch_id.in_(ended)))
    return forgotten


def batches_of(tx: ApiTransaction, uuids: Sequence[str]) -> list[str]:
    """The batches of these servers, in the order of their ids."""
    mappings = tables.instance_mappings
    return sorted(set(tx.execute(sa.select(mappings.c.batch_id).where(mappings.c.instance_uuid.in_(uuids))).scalars()))


_KEYS = (tables.request_specs.c.batch_id, tables.decisions.c.batch_id)


def copies(tx: ApiTransaction, uuids: Sequence[str]) -> list[str]:
    """Everything about these servers and the requests of their batches, a line of JSON for each row. No secret is among them.

    What is of a batch that has other servers comes again with those.
    """
    batches = batches_of(tx, uuids)
    lines = archive.lines(tx, tables.instance_mappings.c.instance_uuid, uuids)
    return lines + [line for key in _KEYS for line in archive.lines(tx, key, batches)]
