"""Remove a host from the API database, or map it to another cell.

Each is the second of two steps, after ``db/cell/host_removal.py`` removed the host from its cell. Each step is one transaction that
may be repeated. A host has one mapping row, so it is never in two cells.
"""

from __future__ import annotations

import sqlalchemy as sa

from db import selections
from db.api.claims import inventories
from db.api.deployment import host_mappings
from db.api.rows import epochs
from db.api.rows.epochs import Epoch
from db.api.rows.tables import aggregate_hosts, allocations, build_requests
from db.api.rows.tables import inventories as inventory_rows
from db.sql.connection import ApiTransaction
from objects import errors


def from_api(tx: ApiTransaction, host: str) -> None:
    """Delete the host's mapping, memberships in aggregates and inventories. Raises NotFound, and Conflict while it has claims."""
    forget_offers(tx, host)
    if tx.execute(sa.delete(aggregate_hosts).where(aggregate_hosts.c.host == host)).rowcount:
        epochs.bump_epoch(tx, Epoch.AGGREGATES)
    host_mappings.delete(tx, host)


def forget_offers(tx: ApiTransaction, host: str) -> None:
    """Delete the host's inventories. Raises Conflict while it has claims."""
    ids = list(tx.execute(sa.select(inventory_rows.c.id).where(inventory_rows.c.host == host)).scalars())
    locked = inventories.lock_rows(tx, ids)  # a concurrent claim waits for these locks, then finds no inventory
    claims = sa.select(sa.func.count()).where(allocations.c.inventory_id.in_([row.id for row in locked]))
    if locked and (count := tx.execute(claims).scalar()):
        raise errors.Conflict(f"Host '{host}' is claimed by {count} servers: delete them, or wait until their builds have moved on")
    tx.execute(sa.delete(inventory_rows).where(inventory_rows.c.id.in_([row.id for row in locked])))


def to_cell(tx: ApiTransaction, host: str, old: str, new: str) -> None:
    """In the API database: map the host to the cell ``new`` (a uuid) instead of ``old``.

    Its inventories are deleted; the feed of the new cell creates them again. Raises Conflict while the host has claims, while it is
    an alternate of builds that have no cell yet, and if it is no longer mapped to ``old``.
    """
    forget_offers(tx, host)
    undecided = (
        sa.select(sa.func.count())
        .select_from(allocations.join(build_requests, build_requests.c.instance_uuid == allocations.c.instance_uuid))
        .where(selections.on_host(allocations.c.selection, host))
    )
    if count := tx.execute(undecided).scalar():
        raise errors.Conflict(f"Host '{host}' is an alternate of {count} builds that have no cell yet: try again when they have")
    if not host_mappings.move_host(tx, host, old, new):
        raise errors.Conflict(f"Host '{host}' is in another cell by now: somebody else has moved or deleted it")
    epochs.bump_epoch(tx, Epoch.HOSTS)
