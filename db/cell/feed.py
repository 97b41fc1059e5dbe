"""A cell's change feed: one row per change, numbered in commit order."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import sqlalchemy as sa

from db.cell.tables import feed, feed_head
from db.sql import clock
from db.sql.connection import CellTransaction
from db.sql.readable import sound_rows
from objects.base import Object
from objects.feed import EventKind, FeedEvent


class NewEvent(Object, frozen=True, kw_only=True):
    """An event that has no number yet."""

    kind: EventKind
    key: str
    version: int
    payload: str


class FeedPage(Object, frozen=True, kw_only=True):
    """Events after a cursor, in order.

    ``read_head``: the number of the newest event in the feed.
    ``trimmed``: some events after the cursor were trimmed, so the reader must rebuild from the rows.
    ``last``: the number of the last row read, from which the reader continues; 0: no row.
    ``count``: rows read. ``events`` has fewer if this release does not know the kind of some.
    """

    events: tuple[FeedEvent, ...]
    head: int
    trimmed: bool
    last: int = 0
    count: int = 0


LOG = logging.getLogger(__name__)

_KINDS = {kind.value: kind for kind in EventKind}
_MORE = feed_head.c.sequence + sa.bindparam("count")
_ADVANCE = sa.update(feed_head).where(feed_head.c.id == 1)
# Both return the new head. MariaDB has no UPDATE .. RETURNING, so there last_insert_id(..) passes it on.
_ADVANCE_AND_RETURN = _ADVANCE.values(sequence=_MORE).returning(feed_head.c.sequence)
_ADVANCE_AND_TELL = _ADVANCE.values(sequence=sa.func.last_insert_id(_MORE))
_HEAD = sa.select(feed_head.c.sequence).where(feed_head.c.id == 1)
_APPEND = sa.insert(feed)
_READ = (
    sa.select(feed_head.c.sequence.label("head"), feed_head.c.trimmed, feed)
    .select_from(feed_head.outerjoin(feed, feed.c.sequence > sa.bindparam("after")))
    .where(feed_head.c.id == 1)
    .order_by(feed.c.sequence)
    .limit(sa.bindparam("limit"))
)

_NO_EVENT = [sa.type_coerce(sa.null(), column.type).label(column.name) for column in feed.c]
_NO_HEAD = [
    sa.type_coerce(sa.null(), feed_head.c[name].type).label(label) for name, label in (("sequence", "head"), ("trimmed", "trimmed"))
]
_READ_APART = sa.union_all(
    sa.select(feed_head.c.sequence.label("head"), feed_head.c.trimmed, *_NO_EVENT).where(feed_head.c.id == 1),
    sa.select(*_NO_HEAD, feed)
    .where(feed.c.sequence > sa.bindparam("after"))
    .order_by(feed.c.sequence)
    .limit(sa.bindparam("limit")),
)
"""The same for MariaDB, with the head in a row of its own. It would sort a join in a temporary table, even if there is no event. As
events have texts, that table would be on disk.
"""


def append_events(tx: CellTransaction, events: Sequence[NewEvent], now: float) -> None:
    """Write events in the transaction of their changes. Call it last: it locks the head row until the commit.

    This lock makes numbers visible in order on every server: a cursor never passes a number that commits later.
    """
    if not events:
        return
    if tx.dialect.name in ("mysql", "mariadb"):
        head: int = tx.execute(_ADVANCE_AND_TELL, {"count": len(events)}).lastrowid
    else:
        head = tx.execute(_ADVANCE_AND_RETURN, {"count": len(events)}).scalar_one()
    rows = []
    for sequence, event in enumerate(events, head - len(events) + 1):
        content = {"kind": event.kind, "key": event.key, "version": event.version, "payload": event.payload}
        rows.append(content | {"sequence": sequence, "created_at": now})
    tx.execute(_APPEND, rows)


def read(tx: CellTransaction, after: int, limit: int) -> FeedPage:
    """At most ``limit`` events numbered above ``after``, in one statement."""
    statement = _READ_APART if tx.dialect.name in ("mysql", "mariadb") else _READ
    rows = tx.execute(statement, {"after": after, "limit": limit}).all()
    bounds = next((r for r in rows if r.head is not None), None)
    if bounds is None:
        return FeedPage(events=(), head=0, trimmed=False)
    rows_with_event = [r for r in rows if r.sequence is not None]
    rows_read = sorted(
        sound_rows(rows_with_event, feed) if tx.dialect.name == "sqlite" else rows_with_event, key=lambda r: r.sequence
    )
    events = tuple(
        FeedEvent(sequence=r.sequence, kind=_KINDS[r.kind], key=r.key, version=r.version, payload=r.payload)
        for r in rows_read
        if r.kind in _KINDS
    )
    if len(events) < len(rows_read):
        unknown = sorted({str(r.kind)[:40] for r in rows_read if r.kind not in _KINDS})
        LOG.warning("skipped %d events of a feed, because their kinds %s are unknown", len(rows_read) - len(events), unknown)
    last = rows_read[-1].sequence if rows_read else 0
    return FeedPage(events=events, head=bounds.head, trimmed=bounds.trimmed > after, last=last, count=len(rows_read))


class Lag(Object, frozen=True, kw_only=True):
    """How far a reader is behind. ``seconds``: the age of its first unread event by the database's clock; None: there is none."""

    events: int
    seconds: float | None


_WAITING = (
    sa.select(clock.Now() - feed.c.created_at).where(feed.c.sequence > sa.bindparam("after")).order_by(feed.c.sequence).limit(1)
)


def lag_after(tx: CellTransaction, after: int) -> Lag:
    """The lag of a reader whose cursor is ``after``."""
    behind = read_head(tx) - after
    waited = tx.execute(_WAITING, {"after": after}).scalar() if behind > 0 else None
    return Lag(events=max(0, behind), seconds=None if waited is None else max(0.0, waited))


def read_head(tx: CellTransaction) -> int:
    """The number of the newest event."""
    return tx.execute(_HEAD).scalar() or 0


LONGEST_AGE_S = 366 * 86400.0
"""Seconds. ``trim_events`` treats the time of an event as wrong if it is later than ``before`` by more than this."""


IS_FIRST_OLD = (
    sa.select(sa.not_(feed.c.created_at.between(sa.bindparam("old_before"), sa.bindparam("odd_after"))))
    .order_by(feed.c.sequence)
    .limit(1)
    .scalar_subquery()
)
"""SQL condition: ``trim_events`` would remove events. Its parameters are ``old_values``. NULL if there is no event."""


def old_values(before: float) -> dict[str, float]:
    """``before``: see ``trim_events``."""
    return {"old_before": before, "odd_after": before + LONGEST_AGE_S}


def trim_events(tx: CellTransaction, before: float) -> int:
    """Remove events written before ``before`` (seconds since the epoch); return how many.

    The cost depends only on what is removed, because the scan stops at the oldest event that stays. An event with an impossible
    time does not keep others in the feed.
    """
    bounds = tx.execute(sa.select(feed_head.c.sequence, feed_head.c.trimmed).where(feed_head.c.id == 1)).one()
    recent = feed.c.created_at.between(before, before + LONGEST_AGE_S)
    oldest = sa.select(feed.c.sequence).where(recent).order_by(feed.c.sequence).limit(1)
    stays: int | None = tx.execute(oldest).scalar()
    last = bounds.sequence if stays is None else stays - 1
    if last <= bounds.trimmed:
        return 0
    removed = tx.execute(sa.delete(feed).where(feed.c.sequence <= last)).rowcount
    tx.execute(sa.update(feed_head).where(feed_head.c.id == 1).values(trimmed=last))
    return removed
