"""Instance actions in a cell: when a delete arrived there, and by which request. The instance's row has the result."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from db.cell.tables import instance_actions
from db.sql.connection import CellTransaction
from objects.action import ActionKind, Started

_INSERT = sa.insert(instance_actions)
_KINDS = frozenset(ActionKind)


def begin_actions(tx: CellTransaction, kind: ActionKind, uuids: Iterable[str], request_id: str | None, now: float) -> None:
    """Record an action on each instance in one statement, in the transaction that brings it into the cell."""
    common = {"action": kind, "request_id": request_id, "started_at": now, "written_at": now}
    if rows := [common | {"instance_uuid": uuid} for uuid in uuids]:
        tx.execute(_INSERT, rows)


def read(tx: CellTransaction, uuid: str) -> list[Started]:
    """The actions of an instance, oldest first. Kinds that this release does not know are left out."""
    query = sa.select(instance_actions).where(instance_actions.c.instance_uuid == uuid).order_by(instance_actions.c.id)
    return [
        Started(kind=ActionKind(row.action), request_id=row.request_id, started_at=row.started_at, written_at=row.written_at)
        for row in tx.execute(query)
        if row.action in _KINDS
    ]
