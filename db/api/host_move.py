"""Move a host to another cell, unless the old cell has instances on it or builds that may still go to it.

Two steps, each one transaction that may be repeated: ``host_removal.from_cell`` in the old cell, then ``to_cell`` in the API
database. A host has one mapping row, so it is never in two cells.
"""

from __future__ import annotations

import sqlalchemy as sa

from db import selections
from db.api import epochs, host_mappings, host_removal
from db.api.epochs import Epoch
from db.api.tables import allocations, build_requests
from db.sql.connection import ApiTransaction
from objects import errors


def to_cell(tx: ApiTransaction, host: str, old: str, new: str) -> None:
    """In the API database: map the host to the cell ``new`` (a uuid) instead of ``old``.

    Its inventories are deleted; the feed of the new cell creates them again. Raises Conflict while the host has claims, while it is
    an alternate of builds that have no cell yet, and if it is no longer mapped to ``old``.
    """
    host_removal.forget_offers(tx, host)
    undecided = (
        sa.select(sa.func.count())
        .select_from(allocations.join(build_requests, build_requests.c.instance_uuid == allocations.c.instance_uuid))
        .where(selections.on_host(allocations.c.selection, host))
    )
    if count := tx.execute(undecided).scalar():
        raise errors.Conflict(f"Host '{host}' is an alternate of {count} builds that have no cell yet: try again when they have")
    if not host_mappings.move(tx, host, old, new):
        raise errors.Conflict(f"Host '{host}' is in another cell by now: somebody else has moved or deleted it")
    epochs.bump(tx, Epoch.HOSTS)
