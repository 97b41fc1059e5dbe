"""Remove a host from the API database, after ``db/cell/host_removal.py`` removed it from its cell."""

from __future__ import annotations

import sqlalchemy as sa

from db.api import epochs, host_mappings, inventories
from db.api.epochs import Epoch
from db.api.tables import aggregate_hosts, allocations
from db.api.tables import inventories as inventory_rows
from db.sql.connection import ApiTransaction
from objects import errors


def from_api(tx: ApiTransaction, host: str) -> None:
    """Delete the host's mapping, memberships in aggregates and inventories. Raises NotFound, and Conflict while it has claims."""
    forget_offers(tx, host)
    if tx.execute(sa.delete(aggregate_hosts).where(aggregate_hosts.c.host == host)).rowcount:
        epochs.bump(tx, Epoch.AGGREGATES)
    host_mappings.delete(tx, host)


def forget_offers(tx: ApiTransaction, host: str) -> None:
    """Delete the host's inventories. Raises Conflict while it has claims."""
    ids = list(tx.execute(sa.select(inventory_rows.c.id).where(inventory_rows.c.host == host)).scalars())
    locked = inventories.lock(tx, ids)  # a concurrent claim waits for these locks, then finds no inventory
    claims = sa.select(sa.func.count()).where(allocations.c.inventory_id.in_([row.id for row in locked]))
    if locked and (count := tx.execute(claims).scalar()):
        raise errors.Conflict(f"Host '{host}' is claimed by {count} servers: delete them, or wait until their builds have moved on")
    tx.execute(sa.delete(inventory_rows).where(inventory_rows.c.id.in_([row.id for row in locked])))
