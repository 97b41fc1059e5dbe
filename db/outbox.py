"""Notices that are still to be sent: written in the transaction of what they tell, taken by one sender at a time, and removed.

A database keeps them only where it was opened to (``Database(..., outbox=True)``); elsewhere ``put_notices`` is never reached and
costs nothing. A sender that dies has its page sent once more by the next: the ids of the messages are the same then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from db.api.rows import tables as api
from db.cell import tables as cell
from db.sql import dialect
from objects import stored
from objects.base import Object
from objects.notification import EventType, Facts, Notice
from objects.payload import Subject
from objects.spec import RequestSpec

LOG = logging.getLogger(__name__)

Kind = Literal["api", "cell"]
"""The kind of database: the API database, or a cell's."""

OPTION = "keeps_outbox"
"""Execution option of the engines of databases with an outbox."""

_TABLES = {"api": api.notifications, "cell": cell.cell_notifications}


class NumberedNotice(Object, frozen=True, kw_only=True):
    """A notice under its number."""

    id: int
    notice: Notice


def is_kept(tx: Connection) -> bool:
    """Whether this database keeps notices at all."""
    return bool(tx.get_execution_options().get(OPTION, False))


def put_notices(tx: Connection, kind: Kind, notices: Sequence[Notice]) -> None:
    """Write notices, in the transaction of what they tell. To be called where ``is_kept`` only."""
    rows = [
        {
            "message_id": notice.message_id,
            "event_type": notice.event_type,
            "priority": notice.event_type.log_priority,
            "subject": notice.subject,
            "facts": stored.dump_value(_Stored(key=notice.key, facts=notice.facts)),
            "at": notice.at,
            "taken_until": 0.0,
        }
        for notice in notices
    ]
    if rows:
        tx.execute(sa.insert(_TABLES[kind]), rows)


def is_empty(tx: Connection, kind: Kind) -> bool:
    """Whether there is nothing to send."""
    return tx.execute(sa.select(_TABLES[kind].c.id).limit(1)).first() is None


def take_notices(tx: Connection, kind: Kind, now: float, until: float, limit: int) -> list[NumberedNotice]:
    """The oldest notices, for this sender alone until ``until``; none while another has some of them.

    One sender at a time, or the end of something could overtake its start.
    """
    table = _TABLES[kind]
    query = sa.select(table).order_by(table.c.id).limit(limit).with_for_update()
    rows = tx.execute(query).all()
    if any(row.taken_until > now for row in rows):
        return []
    taken: list[NumberedNotice] = []
    unreadable: list[int] = []
    for row in rows:
        try:
            taken.append(NumberedNotice(id=row.id, notice=_notice_from_row(row)))
        except (*stored.UNREADABLE, ValueError) as error:
            LOG.error("notification %d cannot be decoded and is dropped: %s", row.id, error)
            unreadable.append(row.id)
    finish_notices(tx, kind, unreadable, [])
    _mark_taken(tx, kind, [waiting.id for waiting in taken], until)
    return taken


def finish_notices(tx: Connection, kind: Kind, sent: Sequence[int], unsent: Sequence[int]) -> None:
    """Remove what was sent, and let go of the rest."""
    table = _TABLES[kind]
    for page in dialect.split_pages(sorted(sent)):
        tx.execute(sa.delete(table).where(table.c.id.in_(page)))
    _mark_taken(tx, kind, unsent, 0.0)


def drop_notices(tx: Connection, kind: Kind, before: float) -> int:
    """Give up notices of before ``before`` (seconds since the epoch), which nobody would take; returns how many."""
    table = _TABLES[kind]
    return tx.execute(sa.delete(table).where(table.c.at < before)).rowcount


def subjects_of(tx: Connection, kind: Kind, notices: Iterable[Notice]) -> dict[str, Subject]:
    """What is known of what these notices are about. Who is missing is unknown by now."""
    ordered_uuids = sorted({notice.subject for notice in notices if notice.facts.service is None})
    subject_by_uuid: dict[str, Subject] = {}
    for page in dialect.split_pages(ordered_uuids):
        subject_by_uuid |= _of_cell(tx, page) if kind == "cell" else _of_batches(tx, page) | _of_api(tx, page)
    return subject_by_uuid


class _Stored(Object, frozen=True, kw_only=True):
    key: str
    facts: Facts


def _mark_taken(tx: Connection, kind: Kind, ids: Sequence[int], until: float) -> None:
    table = _TABLES[kind]
    for page in dialect.split_pages(sorted(ids)):
        tx.execute(sa.update(table).where(table.c.id.in_(page)).values(taken_until=until))


def _notice_from_row(row: sa.Row[tuple[object, ...]]) -> Notice:
    content = stored.load_text(row.facts, _Stored)
    return Notice(event_type=EventType(row.event_type), subject=row.subject, key=content.key, at=row.at, facts=content.facts)


def _of_cell(tx: Connection, uuids: Sequence[str]) -> dict[str, Subject]:
    query = (
        sa.select(cell.instances, cell.builds.c.spec)
        .select_from(cell.instances.outerjoin(cell.builds, cell.builds.c.instance_uuid == cell.instances.c.uuid))
        .where(cell.instances.c.uuid.in_(uuids))
    )
    return {row.uuid: _subject_from_row(row) for row in tx.execute(query)}


def _of_api(tx: Connection, uuids: Sequence[str]) -> dict[str, Subject]:
    """With the size that a server has now: of the body that its home row points to."""
    mappings, specs, body = api.instance_mappings, api.request_specs, api.instance_mappings.alias("body")
    query = (
        sa.select(mappings, specs.c.spec)
        .select_from(mappings)
        .outerjoin(body, body.c.instance_uuid == sa.func.coalesce(mappings.c.body_uuid, mappings.c.instance_uuid))
        .outerjoin(specs, specs.c.batch_id == body.c.batch_id)
        .where(mappings.c.instance_uuid.in_(uuids))
    )
    return {row.instance_uuid: _subject_from_row(row) for row in tx.execute(query)}


def _of_batches(tx: Connection, batches: Sequence[str]) -> dict[str, Subject]:
    query = sa.select(api.request_specs).where(api.request_specs.c.batch_id.in_(batches))
    specs = {row.batch_id: stored.load_or_none(row.spec, RequestSpec) for row in tx.execute(query)}
    moved = _moved_servers(tx, [batch for batch, spec in specs.items() if spec is not None and spec.move is not None])
    return {
        batch: Subject(project_id=spec.project_id, user_id=spec.user_id, batch_id=batch, spec=spec, server_uuid=moved.get(batch))
        for batch, spec in specs.items()
        if spec is not None
    }


def _moved_servers(tx: Connection, batches: Sequence[str]) -> dict[str, str]:
    """The servers that these requests for moves are about. Users know them, and not the bodies that are built for them."""
    mappings = api.instance_mappings.c
    query = sa.select(mappings.batch_id, mappings.server_uuid).where(
        mappings.batch_id.in_(batches), mappings.server_uuid.is_not(None)
    )
    return {row.batch_id: row.server_uuid for row in tx.execute(query)} if batches else {}


def _subject_from_row(row: sa.Row[tuple[object, ...]]) -> Subject:
    return Subject(
        name=row.name,
        project_id=row.project_id,
        user_id=row.user_id,
        batch_id=row.batch_id or "",
        launch_index=row.launch_index,
        created_at=row.created_at,
        spec=stored.load_or_none(row.spec, RequestSpec),
    )
