"""Forget a host that is gone for good: what its cell knows of it, then what the API level does."""

from __future__ import annotations

from contextlib import suppress

import sqlalchemy as sa
from sqlalchemy import Connection

from db import clock, epochs, host_mappings, inventories, services, unknown_guests
from db.epochs import Epoch
from db.tables import api, cell
from objects import errors, lifecycle, stored
from objects.instance import State

UNFINISHED = (*lifecycle.LIVE, State.STAGED)


def from_cell(tx: Connection, host: str, binary: str, silence: float) -> None:
    """Delete its agent's record and its nodes. May be repeated.

    Raises Conflict where servers are on it or unfinished builds may go on to it, or its agent was heard of within ``silence``
    seconds, by the database's clock: it would only report again. One that has said that it stops need not have been silent.
    """
    servers = sa.select(sa.func.count()).where(
        cell.instances.c.host == host, cell.instances.c.state.in_([*lifecycle.LIVE, State.STAGED, State.ACTIVE, State.DELETING])
    )
    if count := tx.execute(servers).scalar():
        raise errors.Conflict(f"Host '{host}' has {count} servers: delete them first")
    if builds := heading_for(tx, host):
        raise errors.Conflict(f"Host '{host}' is an alternate of {len(builds)} unfinished builds: wait until they have ended")
    agent = (cell.services.c.host == host, cell.services.c.binary == binary)
    heard = (cell.services.c.stopping.is_(sa.false()), cell.services.c.last_seen >= clock.Now() - silence)
    if tx.execute(sa.select(cell.services.c.uuid).where(*agent, *heard)).scalar() is not None:
        raise errors.Conflict(f"Host '{host}' is up: stop its agent first")
    with suppress(errors.NotFound):  # it was deleted before, or has never reported
        services.delete(tx, host, binary)
    unknown_guests.forget(tx, host)
    tx.execute(sa.delete(cell.compute_nodes).where(cell.compute_nodes.c.host == host))


def heading_for(tx: Connection, host: str) -> list[str]:
    """In a cell: unfinished builds that may go on to this host, should an earlier one fail; uuids."""
    query = (
        sa.select(cell.instances.c.uuid)
        .join(cell.builds, cell.builds.c.instance_uuid == cell.instances.c.uuid)
        .where(cell.instances.c.state.in_(sorted(UNFINISHED)), names(cell.builds.c.alternates, host))
        .order_by(cell.instances.c.uuid)
    )
    return list(tx.execute(query).scalars())


def names(selections: sa.Column[str], host: str) -> sa.ColumnElement[bool]:
    """Stored Selections one of which is on this host."""
    return selections.contains(f'"host":{stored.dump(host)}', autoescape=True)


def from_api(tx: Connection, host: str) -> None:
    """Delete its mapping, its places in aggregates and its inventories. Raises Conflict while claims are on it, NotFound."""
    forget_offers(tx, host)
    if tx.execute(sa.delete(api.aggregate_hosts).where(api.aggregate_hosts.c.host == host)).rowcount:
        epochs.bump(tx, Epoch.AGGREGATES)
    host_mappings.delete(tx, host)


def forget_offers(tx: Connection, host: str) -> None:
    """Delete its inventories. Raises Conflict while claims are on them."""
    ids = list(tx.execute(sa.select(api.inventories.c.id).where(api.inventories.c.host == host)).scalars())
    locked = inventories.lock(tx, ids)  # whoever claims waits, and then finds nothing
    claims = sa.select(sa.func.count()).where(api.allocations.c.inventory_id.in_([row.id for row in locked]))
    if locked and (count := tx.execute(claims).scalar()):
        raise errors.Conflict(f"Host '{host}' is claimed by {count} servers: delete them, or wait until their builds have moved on")
    tx.execute(sa.delete(api.inventories).where(api.inventories.c.id.in_([row.id for row in locked])))
