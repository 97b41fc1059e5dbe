"""A cell's state as the feed would have told it, for a reader that fell behind a trimmed feed."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from db import instances
from db.tables.cell import instances as table
from objects import stored
from objects.base import Object
from objects.feed import EventKind, FeedEvent
from objects.instance import State


class Snapshot(Object, frozen=True, kw_only=True):
    """One event or two for every row of one page, and where the feed stood before the first page was read."""

    events: tuple[FeedEvent, ...]
    last_uuid: str | None


KINDS = {
    State.SCHEDULED: (EventKind.MOVED,),
    State.BUILDING: (EventKind.MOVED,),
    State.DELETING: (EventKind.MOVED,),
    State.ACTIVE: (EventKind.MOVED, EventKind.ACTIVE),
    State.ERROR: (EventKind.ENDED,),
    State.DELETED: (EventKind.ENDED,),
}
"""What the feed would tell of a row in this state, in this order."""


def snapshot(tx: Connection, after: str, limit: int, now: float) -> Snapshot:
    """Rows by uuid from ``after`` on, STAGED ones left out. Applying them is idempotent: each carries its row's version."""
    query = sa.select(table.c.uuid).where(table.c.uuid > after, table.c.state != State.STAGED).order_by(table.c.uuid).limit(limit)
    uuids = list(tx.execute(query).scalars())
    events = tuple(
        FeedEvent(sequence=0, kind=kind, key=row.uuid, version=row.version, payload=stored.dump(instances.summary(row, now)))
        for row in instances.read(tx, uuids)
        for kind in KINDS[row.state]
    )
    return Snapshot(events=events, last_uuid=uuids[-1] if uuids else None)
