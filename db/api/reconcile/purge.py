"""Purge servers that were deleted long ago from the API database, after their cells purged them (``db/cell/purge.py``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from db import archive
from db.api.rows import spec_fields, tables
from db.sql import dialect
from db.sql.connection import ApiTransaction

SERVERS_PER_TRANSACTION = dialect.IN_LIST_SIZE
"""Maximum number of servers that one transaction purges."""

_BATCH_TABLES = (tables.request_specs, tables.request_tags, tables.request_metadata, tables.request_secrets, tables.decisions)


_BODY = tables.instance_mappings.alias("body")
_POINTS_TO_ANOTHER = (
    sa.exists()
    .where(
        _BODY.c.instance_uuid == tables.instance_mappings.c.body_uuid,
        _BODY.c.instance_uuid != tables.instance_mappings.c.instance_uuid,
    )
    .correlate(tables.instance_mappings)
)
"""The home row of a server that is another body by now: it stays for as long as that, because lists and operations need it."""


def purge_servers(tx: ApiTransaction, before: float, cells: Collection[str]) -> int:
    """Purge a page of the servers that ``old_servers`` finds, with their batches; return how many. ``cells``: uuids."""
    return forget_servers(tx, old_servers(tx, before, cells))


def old_servers(tx: ApiTransaction, before: float, cells: Collection[str], most: int = SERVERS_PER_TRANSACTION) -> Sequence[str]:
    """The uuids of at most ``most`` servers deleted before ``before`` (seconds since the epoch).

    They are servers of ``cells`` (uuids), servers that never had a cell, and servers whose cell was removed.
    """
    mappings = tables.instance_mappings
    query = (
        sa.select(mappings.c.instance_uuid)
        .where(
            mappings.c.deleted == sa.true(),  # spelled so that MariaDB uses the index
            mappings.c.state == "deleted",
            mappings.c.terminated_at < before,
            ~_POINTS_TO_ANOTHER,
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
    """Purge at most SERVERS_PER_TRANSACTION servers, and their batches that have no servers left; return how many servers."""
    if not uuids:
        return 0
    mappings = tables.instance_mappings
    batches = batches_of(tx, uuids)
    tx.execute(sa.delete(tables.operations).where(tables.operations.c.server_uuid.in_(uuids)))
    forgotten = tx.execute(sa.delete(mappings).where(mappings.c.instance_uuid.in_(uuids))).rowcount
    spec_fields.forget_servers(tx, uuids)
    used = set(tx.execute(sa.select(mappings.c.batch_id).where(mappings.c.batch_id.in_(batches))).scalars())
    if ended := [batch for batch in batches if batch not in used]:
        for table in _BATCH_TABLES:
            tx.execute(sa.delete(table).where(table.c.batch_id.in_(ended)))
    return forgotten


def batches_of(tx: ApiTransaction, uuids: Sequence[str]) -> list[str]:
    """The batches of these servers, in the order of their ids."""
    mappings = tables.instance_mappings
    return sorted(set(tx.execute(sa.select(mappings.c.batch_id).where(mappings.c.instance_uuid.in_(uuids))).scalars()))


_KEYS = (tables.request_specs.c.batch_id, tables.decisions.c.batch_id)


def lines_of_servers(tx: ApiTransaction, uuids: Sequence[str]) -> list[str]:
    """The rows of these servers and of their batches (specs and decisions), one line of JSON each, without secrets.

    The rows of a batch come again with its other servers.
    """
    batches = batches_of(tx, uuids)
    lines = archive.lines_of(tx, tables.instance_mappings.c.instance_uuid, uuids)
    lines += archive.lines_of(tx, tables.operations.c.server_uuid, uuids)
    return lines + [line for key in _KEYS for line in archive.lines_of(tx, key, batches)]
