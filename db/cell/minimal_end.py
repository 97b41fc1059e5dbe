"""Ends written with columns of our own alone, for a build or a delete whose full end cannot be written.

The full end (``instances.py``) writes what others have said: the failure texts, the history of attempts, a notification. Where a
database or codec refuses one of these the row would keep its state for ever. What is written here is the state, the counters that
fence and order, and a fixed sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from db.cell import feed, instances
from db.cell.instances import DueRow
from db.cell.tables import instance_faults
from db.cell.tables import instances as table
from db.sql.connection import CellTransaction
from objects import lifecycle, stored
from objects.feed import EventKind, InstanceSummary
from objects.instance import State
from objects.lifecycle import LARGEST_ATTEMPT, LARGEST_VERSION

TIMED_OUT = "Build timed out. What happened before could not be stored."
UNDONE = "Another server of this request failed. What happened before could not be stored."

_C = table.c
_LOCK = (
    sa.select(_C.uuid, _C.state, _C.attempt, _C.version, _C.rolled_back.is_not(None).label("rolled_back"))
    .where(_C.uuid == sa.bindparam("of"))
    .with_for_update()
)
_END = (
    sa.update(table)
    .where(_C.uuid == sa.bindparam("of"))
    .values(
        state=sa.bindparam("new_state"),
        attempt=sa.bindparam("new_attempt"),
        builder=None,
        version=sa.bindparam("new_version"),
        updated_at=sa.bindparam("now"),
        terminated_at=sa.bindparam("terminated"),
    )
)
_FAULT = sa.insert(instance_faults)


def end_all(tx: CellTransaction, rows: Sequence[DueRow], now: float) -> dict[str, State]:
    """End each build (ERROR) or delete (DELETED; ERROR where its batch is rolled back) that is still as it was found.

    Returns the states of those that are ended then. Nothing is written of one that has changed, or is in no state that can end.
    """
    ended = {}
    events = []
    for found in sorted(rows, key=_uuid):
        event = _end(tx, found, now)
        if event is not None:
            state, new_event = event
            ended[found.uuid] = state
            events.append(new_event)
    feed.append(tx, events, now)
    return ended


def gone(tx: CellTransaction, uuid: str, host: str, attempt: int, now: float) -> bool:
    """An agent says that it destroyed the guest of a row that is DELETING on its host: end the delete. False: it is not."""
    found = instances.found(tx, uuid)
    if found is None or (found.state, found.host, found.attempt) != (State.DELETING, host, attempt):
        return False
    return bool(end_all(tx, [found], now))


def _uuid(found: DueRow) -> str:
    return found.uuid


def _end(tx: CellTransaction, found: DueRow, now: float) -> tuple[State, feed.NewEvent] | None:
    row = tx.execute(_LOCK, {"of": found.uuid}).one_or_none()
    if row is None or (row.state, row.attempt) != (found.state, found.attempt):
        return None
    if row.state not in (*lifecycle.LIVE, State.DELETING):
        return None
    deleted = row.state == State.DELETING and not row.rolled_back
    state = State.DELETED if deleted else State.ERROR
    attempt = row.attempt if deleted else _next(row.attempt, LARGEST_ATTEMPT)
    version = _next(row.version, LARGEST_VERSION)
    terminated = now if deleted else None
    values = {"new_state": state, "new_attempt": attempt, "new_version": version, "terminated": terminated}
    tx.execute(_END, {"of": found.uuid, "now": now} | values)
    sentence = None if deleted else UNDONE if row.rolled_back else TIMED_OUT
    if sentence is not None:
        tx.execute(_FAULT, {"instance_uuid": found.uuid, "code": 500, "message": sentence, "details": "[]", "created_at": now})
    summary = InstanceSummary(state=state, terminated_at=terminated, updated_at=now, fault=sentence, attempt=attempt)
    return state, feed.NewEvent(kind=EventKind.ENDED, key=found.uuid, version=version, payload=stored.dump(summary))


def _next(number: object, largest: int) -> int:
    """One more, as far as the column has room: a final state refuses reports by itself. 1 for what is no number, as in SQLite."""
    return min(number + 1, largest) if isinstance(number, int) else 1
