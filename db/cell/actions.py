"""Instance actions in a cell: that something was asked of a server, by which request, and when. How it went is in its row."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from db.cell.tables import instance_actions
from db.sql.connection import CellTransaction
from objects.action import ActionKind, Started

_INSERT = sa.insert(instance_actions)
_KINDS = frozenset(ActionKind)


def begin(tx: CellTransaction, kind: ActionKind, starts: Iterable[tuple[str, float]], request_id: str | None, now: float) -> None:
    """Note that an action began for each ``(instance, time)``: one statement, in the transaction that brings it into the cell."""
    begin_all(tx, kind, [(uuid, started_at, request_id) for uuid, started_at in starts], now)


def begin_all(tx: CellTransaction, kind: ActionKind, starts: Iterable[tuple[str, float, str | None]], now: float) -> None:
    """The same for actions of several requests: ``(instance, time, request)``."""
    common = {"action": kind, "written_at": now}
    rows = [common | {"instance_uuid": uuid, "request_id": request, "started_at": at} for uuid, at, request in starts]
    if rows:
        tx.execute(_INSERT, rows)


def read(tx: CellTransaction, uuid: str) -> list[Started]:
    """The actions of an instance, oldest first, without kinds that this release does not know."""
    query = sa.select(instance_actions).where(instance_actions.c.instance_uuid == uuid).order_by(instance_actions.c.id)
    return [
        Started(kind=ActionKind(row.action), request_id=row.request_id, started_at=row.started_at, written_at=row.written_at)
        for row in tx.execute(query)
        if row.action in _KINDS
    ]
