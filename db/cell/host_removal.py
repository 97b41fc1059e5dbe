"""Remove a host from its cell's database. ``db/api/deployment/host_removal.py`` removes it from the API database afterwards."""

from __future__ import annotations

from contextlib import suppress

import sqlalchemy as sa

from db import selections
from db.cell import host_terms, services, unknown_guests
from db.cell.tables import builds, compute_nodes, instances
from db.cell.tables import services as service_rows
from db.sql import clock
from db.sql.connection import CellTransaction
from objects import errors, lifecycle
from objects.instance import State

UNFINISHED = (*lifecycle.LIVE, State.STAGED)


def from_cell(tx: CellTransaction, host: str, binary: str, silence: float) -> None:
    """Delete the host's agent record, unknown guests and nodes. Idempotent.

    Raises Conflict if the host has servers or is an alternate of unfinished builds. Also raises Conflict if its agent sent a
    heartbeat within ``silence`` seconds (database's clock) and did not announce a stop: the agent would report the host again.
    """
    servers = sa.select(sa.func.count()).where(
        instances.c.host == host, instances.c.state.in_([*lifecycle.LIVE, State.STAGED, State.ACTIVE, State.DELETING])
    )
    if count := tx.execute(servers).scalar():
        raise errors.Conflict(f"Host '{host}' has {count} servers: delete them first")
    if heading := heading_for(tx, host):
        raise errors.Conflict(f"Host '{host}' is an alternate of {len(heading)} unfinished builds: wait until they have ended")
    agent = (service_rows.c.host == host, service_rows.c.binary == binary)
    is_heard = (service_rows.c.stopping.is_(sa.false()), service_rows.c.last_seen >= clock.Now() - silence)
    if tx.execute(sa.select(service_rows.c.uuid).where(*agent, *is_heard)).scalar() is not None:
        raise errors.Conflict(f"Host '{host}' is up: stop its agent first")
    with suppress(errors.NotFound):  # it was deleted before, or has never reported
        services.delete(tx, host, binary)
    unknown_guests.forget_guests(tx, host)
    host_terms.forget_host(tx, host)
    tx.execute(sa.delete(compute_nodes).where(compute_nodes.c.host == host))


def heading_for(tx: CellTransaction, host: str) -> list[str]:
    """Uuids of unfinished builds that have this host as an alternate."""
    query = (
        sa.select(instances.c.uuid)
        .join(builds, builds.c.instance_uuid == instances.c.uuid)
        .where(instances.c.state.in_(sorted(UNFINISHED)), selections.on_host(builds.c.alternates, host))
        .order_by(instances.c.uuid)
    )
    return list(tx.execute(query).scalars())
