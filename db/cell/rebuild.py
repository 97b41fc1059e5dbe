"""A cell's state as the feed would have told it, for a reader that fell behind a trimmed feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import sqlalchemy as sa

from db.cell import instances
from db.cell.tables import instances as table
from db.sql.connection import CellTransaction
from objects import stored
from objects.base import Object
from objects.feed import EventKind, FeedEvent
from objects.instance import Instance, State


class Snapshot(Object, frozen=True, kw_only=True):
    """One event or two for every row of one page. ``unreadable``: rows that cannot be told of, by uuid with the reason."""

    events: tuple[FeedEvent, ...]
    last_uuid: str | None
    unreadable: Mapping[str, str] = {}


KINDS = {
    State.SCHEDULED: (EventKind.MOVED,),
    State.BUILDING: (EventKind.MOVED,),
    State.DELETING: (EventKind.MOVED,),
    State.ACTIVE: (EventKind.MOVED, EventKind.ACTIVE),
    State.ERROR: (EventKind.ENDED,),
    State.DELETED: (EventKind.ENDED,),
}
"""The feed's events of a row in this state, in this order."""


def read_snapshot(tx: CellTransaction, after: str, limit: int, now: float) -> Snapshot:
    """Rows by uuid from ``after`` on, STAGED ones left out. Applying them is idempotent: each carries its row's version."""
    query = sa.select(table.c.uuid).where(table.c.uuid > after, table.c.state != State.STAGED).order_by(table.c.uuid).limit(limit)
    uuids = list(tx.execute(query).scalars())
    return msgspec.structs.replace(snapshot_of(tx, uuids, now), last_uuid=uuids[-1] if uuids else None)


def snapshot_of(tx: CellTransaction, uuids: Sequence[str], now: float) -> Snapshot:
    """The same of these rows, as far as they are there and not STAGED. One that cannot be decoded costs its neighbours nothing."""
    try:
        return Snapshot(events=tuple(_events_of(tx, uuids, now)), last_uuid=None)
    except (*stored.UNREADABLE, ValueError):
        """Some of them cannot be decoded: they are found below."""
    events: list[FeedEvent] = []
    unreadable: dict[str, str] = {}
    for uuid in uuids:
        try:
            events += _events_of(tx, [uuid], now)
        except (*stored.UNREADABLE, ValueError) as error:
            unreadable[uuid] = f"{type(error).__name__}: {error}"
    return Snapshot(events=tuple(events), last_uuid=None, unreadable=unreadable)


def _events_of(tx: CellTransaction, uuids: Sequence[str], now: float) -> list[FeedEvent]:
    return [
        FeedEvent(
            sequence=0, kind=kind, key=row.uuid, version=row.version, payload=stored.dump_value(instances.summary_of(row, now))
        )
        for row in instances.read(tx, uuids)
        for kind in _kinds_of(row)
    ]


def _kinds_of(row: Instance) -> tuple[EventKind, ...]:
    """Raises ValueError for a row in a state that this release does not know: what it would tell is unknown."""
    if row.state is State.UNKNOWN:
        raise ValueError("the state of its row is unknown to this release")
    return KINDS.get(row.state, ())
