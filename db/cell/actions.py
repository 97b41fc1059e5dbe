"""Instance actions in a cell: what was requested of a server, by which request, and when. The instance's row has the result."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from db.cell.tables import instance_actions
from db.sql.connection import CellTransaction
from objects.action import ActionKind, Started

_INSERT = sa.insert(instance_actions)
_KINDS = frozenset(ActionKind)


def begin(tx: CellTransaction, kind: ActionKind, starts: Iterable[tuple[str, float]], request_id: str | None, now: float) -> None:
    """Record an action for each ``(instance, time)`` in one statement, in the transaction that brings it into the cell."""
    begin_all(tx, kind, [(uuid, started_at, request_id) for uuid, started_at in starts], now)


def begin_all(tx: CellTransaction, kind: ActionKind, starts: Iterable[tuple[str, float, str | None]], now: float) -> None:
    """Record actions of several requests: ``(instance, time, request)``."""
    common = {"action": kind, "written_at": now}
    rows = [common | {"instance_uuid": uuid, "request_id": request, "started_at": at} for uuid, at, request in starts]
    if rows:
        tx.execute(_INSERT, rows)


def read(tx: CellTransaction, uuid: str) -> list[Started]:
    """The actions of an instance, oldest first. Kinds that this release does not know are left out."""
    query = sa.select(instance_actions).where(instance_actions.c.instance_uuid == uuid).order_by(instance_actions.c.id)
    return [
        Started(kind=ActionKind(row.action), request_id=row.request_id, started_at=row.started_at, written_at=row.written_at)
        for row in tx.execute(query)
        if row.action in _KINDS
    ]
