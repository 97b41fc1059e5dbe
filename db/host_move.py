"""Give a host to another cell: refused while anything of the old cell is on it, or may still come to it.

The steps, each in one transaction, may be repeated: ``from_cell`` in the old cell, then ``to_cell`` in the API
database. A mapping is one row, so a host is never in two cells.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from db import epochs, host_mappings, host_removal
from db.epochs import Epoch
from db.tables import api, cell
from objects import errors, lifecycle, stored
from objects.instance import State

UNFINISHED = (*lifecycle.LIVE, State.STAGED)


def heading_for(tx: Connection, host: str) -> list[str]:
    """In a cell: unfinished builds that may go on to this host, should an earlier one fail; uuids."""
    query = (
        sa.select(cell.instances.c.uuid)
        .join(cell.builds, cell.builds.c.instance_uuid == cell.instances.c.uuid)
        .where(cell.instances.c.state.in_(sorted(UNFINISHED)), _names(cell.builds.c.alternates, host))
        .order_by(cell.instances.c.uuid)
    )
    return list(tx.execute(query).scalars())


def from_cell(tx: Connection, host: str, binary: str, silence: float) -> None:
    """In the old cell: forget the host's agent and nodes. Raises Conflict as ``host_removal`` does, and for ``heading_for``."""
    if builds := heading_for(tx, host):
        raise errors.Conflict(f"Host '{host}' is an alternate of {len(builds)} unfinished builds: wait until they have ended")
    host_removal.from_cell(tx, host, binary, silence)


def to_cell(tx: Connection, host: str, old: str, new: str) -> None:
    """In the API database: map the host to the cell ``new`` (a uuid) instead of ``old``.

    What it offers is forgotten until the new cell tells. Raises Conflict while claims are on it, while builds that have no cell yet
    may go on to it, and where it was not mapped to ``old`` any more.
    """
    host_removal.forget_offers(tx, host)
    undecided = (
        sa.select(sa.func.count())
        .select_from(
            api.allocations.join(api.build_requests, api.build_requests.c.instance_uuid == api.allocations.c.instance_uuid)
        )
        .where(_names(api.allocations.c.selection, host))
    )
    if count := tx.execute(undecided).scalar():
        raise errors.Conflict(f"Host '{host}' is an alternate of {count} builds that have no cell yet: try again when they have")
    if not host_mappings.move(tx, host, old, new):
        raise errors.Conflict(f"Host '{host}' is in another cell by now: somebody else has moved or deleted it")
    epochs.bump(tx, Epoch.HOSTS)


def _names(selections: sa.Column[str], host: str) -> sa.ColumnElement[bool]:
    """Stored Selections one of which is on this host."""
    return selections.contains(f'"host":{stored.dump(host)}', autoescape=True)
