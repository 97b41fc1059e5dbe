"""Whether the API database is the one that its cells have known: how a restored backup or a lossy fail-over is recognised.

The API database has an incarnation with a mark that rises every few seconds. Each cell's database keeps the highest mark that it
was told. A database from a backup is behind what the cells keep; a cell's that was restored is behind what it has confirmed.
Nothing is leased while an incarnation is compared with its cells, nor by a process that knows a later mark (``db/api/leases.py``).
"""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from db.api.epochs import Epoch, bump
from db.api.tables import build_requests, cell_marks, epochs, incarnation
from db.sql import clock, dialect
from db.sql.connection import ApiTransaction
from db.sql.upsert import Upsert
from objects.base import Object

MARK_INTERVAL_S = 5.0
"""Seconds between two marks. Fewer commits than this loses a restore that no mark shows; the server's identity shows it then."""
FENCE_STEP = 2**32
"""Added to the fences of queued requests in a comparison: nobody who drove them before holds such a fence."""

EPOCH_STEP = 2**32
"""Added to all epochs in a comparison: they are others than any process has seen before the restore."""

LEASING, COMPARING = "leasing", "comparing"


class ServerIdentity(FunctionElement[str]):
    """Which server holds the database, as an expression: it changes where a replica takes over. Empty for a file."""

    type = sa.String()
    name = "server_identity"
    inherit_cache = True


_SPELLED = {
    "sqlite": "''",
    "postgresql": "substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)",  # the timeline: a promotion begins a new one
    "mysql": "CAST(@@server_id AS CHAR)",
}


@compiles(ServerIdentity)
def _spell(element: ServerIdentity, compiler: Any, **_: object) -> str:
    return _SPELLED[compiler.dialect.name]


class Known(Object, frozen=True, kw_only=True):
    """The incarnation that a process has compared with the cells, and the highest mark that it has seen of it."""

    uuid: str
    mark: int


class Incarnation(Object, frozen=True, kw_only=True):
    """What the API database says of itself.

    ``moved``: another server holds it than the one it was compared on. ``due``: the mark was not raised for an interval.
    """

    uuid: str
    mark: int
    comparing: bool
    reason: str
    moved: bool
    due: bool


_I = incarnation.c
_ONE = _I.id == 1
_DUE = _I.changed_at < clock.Now() - MARK_INTERVAL_S * 0.9  # less than the interval: the process that raised it last is on time
_READ = sa.select(incarnation, (_I.server != ServerIdentity()).label("moved"), _DUE.label("due")).where(_ONE)
_ADVANCE = sa.update(incarnation).where(_ONE, _I.state == LEASING, _DUE).values(mark=_I.mark + 1, changed_at=clock.Now())
_CLOSE = (
    sa.update(incarnation)
    .where(_ONE, _I.uuid == sa.bindparam("of"), _I.state == LEASING)
    .values(state=COMPARING, reason=sa.bindparam("why"), changed_at=clock.Now())
)
_EXPLAIN = sa.update(incarnation).where(_ONE, _I.state == COMPARING).values(reason=sa.bindparam("why"))
_OPEN = (
    sa.update(incarnation)
    .where(_ONE, _I.uuid == sa.bindparam("of"), _I.state == COMPARING)
    .values(
        uuid=sa.bindparam("new"),
        mark=sa.bindparam("at"),
        server=ServerIdentity(),
        state=LEASING,
        reason="",
        changed_at=clock.Now(),
    )
)
_LIFT = sa.update(build_requests).values(fence=build_requests.c.fence + FENCE_STEP, state="queued", owner=None, lease_until=0.0)
_RAISE_EPOCHS = sa.update(epochs).values(epoch=epochs.c.epoch + EPOCH_STEP)
_MARKS = Upsert(cell_marks, key=["cell_uuid"], replaced=["mark"])


def read(tx: ApiTransaction) -> Incarnation | None:
    """None: no super conductor has run with this database."""
    row = tx.execute(_READ).one_or_none()
    if row is None:
        return None
    comparing = row.state == COMPARING
    moved, due = bool(row.moved), bool(row.due)
    return Incarnation(uuid=row.uuid, mark=row.mark, comparing=comparing, reason=row.reason, moved=moved, due=due)


def advance(tx: ApiTransaction) -> Incarnation:
    """Raise the mark, if nobody has done so just now; the first call makes the row. Not while it is being compared."""
    if not tx.execute(_ADVANCE).rowcount:
        row = {"id": 1, "uuid": str(uuid.uuid4()), "mark": 0, "server": "", "state": LEASING, "reason": "", "changed_at": 0.0}
        if dialect.insert_new(tx, incarnation, [row]):
            tx.execute(sa.update(incarnation).where(_ONE).values(server=ServerIdentity(), changed_at=clock.Now()))
    found = read(tx)
    if found is None:
        raise LookupError("the incarnation's row is gone")
    return found


def close(tx: ApiTransaction, known: str, reason: str) -> bool:
    """Let nothing be leased until ``open_`` ends the comparison; False if that was so already.

    The fences of all queued requests rise in the same transaction: whoever drives one has lost it.
    """
    if not tx.execute(_CLOSE, {"of": known, "why": reason}).rowcount:
        return False
    tx.execute(_LIFT)
    return True


def explain(tx: ApiTransaction, reason: str) -> None:
    """Say what the comparison waits for."""
    tx.execute(_EXPLAIN, {"why": reason})


def open_(tx: ApiTransaction, known: str, new: str, mark: int) -> bool:
    """The comparison is done: let requests be leased under a new incarnation. False if somebody else has done so.

    Whatever processes cache of this database they load again: a restored epoch may be one that they have seen with other rows.
    """
    if not tx.execute(_OPEN, {"of": known, "new": new, "at": mark}).rowcount:
        return False
    bump(tx, Epoch.FEEDS)
    tx.execute(_RAISE_EPOCHS)
    return True


def told(tx: ApiTransaction) -> dict[str, int]:
    """The marks that the cells have confirmed, by cell."""
    return {row.cell_uuid: row.mark for row in tx.execute(sa.select(cell_marks))}


def confirm(tx: ApiTransaction, marks: dict[str, int]) -> None:
    """These cells have noted these marks."""
    _MARKS(tx, [{"cell_uuid": cell, "mark": mark} for cell, mark in sorted(marks.items())])


def forget_told(tx: ApiTransaction) -> None:
    """A new incarnation begins: what cells have confirmed of the last one says nothing."""
    tx.execute(sa.delete(cell_marks))


_OTHER = sa.or_(_I.uuid != sa.bindparam("incarnation"), _I.mark < sa.bindparam("mark"))
_TOLD = sa.bindparam("incarnation", type_=sa.String) != ""
CLOSED = sa.exists().where(_ONE, sa.or_(_I.state != LEASING, _I.server != ServerIdentity(), sa.and_(_TOLD, _OTHER))).correlate(None)
"""True where nothing may be leased, for a process that knows ``incarnation`` at ``mark`` (empty: it knows none)."""
