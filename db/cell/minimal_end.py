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
    for due_row in sorted(rows, key=_uuid_of):
        event = _end_row(tx, due_row, now)
        if event is not None:
            state, new_event = event
            ended[due_row.uuid] = state
            events.append(new_event)
    feed.append_events(tx, events, now)
    return ended


def end_if_gone(tx: CellTransaction, uuid: str, host: str, attempt: int, now: float) -> bool:
    """An agent says that it destroyed the guest of a row that is DELETING on its host: end the delete. False: it is not."""
    due_row = instances.find_row(tx, uuid)
    if due_row is None or (due_row.state, due_row.host, due_row.attempt) != (State.DELETING, host, attempt):
        return False
    return bool(end_all(tx, [due_row], now))


def _uuid_of(due_row: DueRow) -> str:
    return due_row.uuid


def _end_row(tx: CellTransaction, due_row: DueRow, now: float) -> tuple[State, feed.NewEvent] | None:
    row = tx.execute(_LOCK, {"of": due_row.uuid}).one_or_none()
    if row is None or (row.state, row.attempt) != (due_row.state, due_row.attempt):
        return None
    if row.state not in (*lifecycle.LIVE, State.DELETING):
        return None
    deleted = row.state == State.DELETING and not row.rolled_back
    state = State.DELETED if deleted else State.ERROR
    attempt = row.attempt if deleted else _next_number(row.attempt, LARGEST_ATTEMPT)
    version = _next_number(row.version, LARGEST_VERSION)
    terminated = now if deleted else None
    values = {"new_state": state, "new_attempt": attempt, "new_version": version, "terminated": terminated}
    tx.execute(_END, {"of": due_row.uuid, "now": now} | values)
    sentence = None if deleted else UNDONE if row.rolled_back else TIMED_OUT
    if sentence is not None:
        tx.execute(_FAULT, {"instance_uuid": due_row.uuid, "code": 500, "message": sentence, "details": "[]", "created_at": now})
    summary = InstanceSummary(state=state, terminated_at=terminated, updated_at=now, fault=sentence, attempt=attempt)
    return state, feed.NewEvent(kind=EventKind.ENDED, key=due_row.uuid, version=version, payload=stored.dump_value(summary))


def _next_number(number: object, largest: int) -> int:
    """One more, as far as the column has room: a final state refuses reports by itself. 1 for what is no number, as in SQLite."""
    return min(number + 1, largest) if isinstance(number, int) else 1
