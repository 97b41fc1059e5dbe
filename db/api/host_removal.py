"""Forget a host that is gone for good: what the API level knows of it, once its cell has forgotten it."""

from __future__ import annotations

import sqlalchemy as sa

from db.api import epochs, host_mappings, inventories
from db.api.epochs import Epoch
from db.api.tables import aggregate_hosts, allocations
from db.api.tables import inventories as inventory_rows
from db.sql.connection import ApiTransaction
from objects import errors


def from_api(tx: ApiTransaction, host: str) -> None:
    """Delete its mapping, its places in aggregates and its inventories. Raises Conflict while claims are on it, NotFound."""
    forget_offers(tx, host)
    if tx.execute(sa.delete(aggregate_hosts).where(aggregate_hosts.c.host == host)).rowcount:
        epochs.bump(tx, Epoch.AGGREGATES)
    host_mappings.delete(tx, host)


def forget_offers(tx: ApiTransaction, host: str) -> None:
    """Delete its inventories. Raises Conflict while claims are on them."""
    ids = list(tx.execute(sa.select(inventory_rows.c.id).where(inventory_rows.c.host == host)).scalars())
    locked = inventories.lock(tx, ids)  # whoever claims waits, and then finds nothing
    claims = sa.select(sa.func.count()).where(allocations.c.inventory_id.in_([row.id for row in locked]))
    if locked and (count := tx.execute(claims).scalar()):
        raise errors.Conflict(f"Host '{host}' is claimed by {count} servers: delete them, or wait until their builds have moved on")
    tx.execute(sa.delete(inventory_rows).where(inventory_rows.c.id.in_([row.id for row in locked])))
