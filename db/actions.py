"""Instance actions in a cell: that something was asked of a server, by which request, and when. How it went is in its row."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import Connection

from db.tables.cell import instance_actions
from objects.action import Kind, Started


def begin(tx: Connection, kind: Kind, starts: Iterable[tuple[str, float]], request_id: str | None, now: float) -> None:
    """Note that an action began for each ``(instance, time)``: one statement, in the transaction that brings it into the cell."""
    common = {"action": kind, "request_id": request_id, "written_at": now}
    rows = [common | {"instance_uuid": uuid, "started_at": started_at} for uuid, started_at in starts]
    if rows:
        tx.execute(sa.insert(instance_actions), rows)


def read(tx: Connection, uuid: str) -> list[Started]:
    """The actions of an instance, oldest first."""
    query = sa.select(instance_actions).where(instance_actions.c.instance_uuid == uuid).order_by(instance_actions.c.id)
    return [
        Started(kind=Kind(row.action), request_id=row.request_id, started_at=row.started_at, written_at=row.written_at)
        for row in tx.execute(query)
    ]
