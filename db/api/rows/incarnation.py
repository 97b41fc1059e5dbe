"""Detect that the API database or a cell's database was restored from a backup, or lost commits in a fail-over.

The API database has an incarnation with a mark that rises every few seconds, and each cell's database stores the highest mark it
received. A restored API database has a lower mark than its cells; a restored cell has a lower mark than it confirmed. Nobody leases
requests while an incarnation is compared with its cells, and no process that knows a later mark does (``db/api/queue/leases.py``).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from db.api.rows.epochs import Epoch, bump_epoch
from db.api.rows.ledger import Stamp
from db.api.rows.tables import build_requests, cell_marks, epochs, holds, incarnation, operations
from db.sql import clock, dialect, galera
from db.sql.connection import ApiTransaction
from db.sql.dialect import Upsert
from objects import errors
from objects.base import Object
from objects.hold import HELD
from objects.lifecycle import FENCE_STEP

P = ParamSpec("P")
T = TypeVar("T")

MARK_INTERVAL_S = 5.0
"""Seconds between two marks. A restore that loses less than this shows in no mark, only in the server's identity."""
EPOCH_STEP = 2**32
"""Added to all epochs when a comparison ends, so that they differ from all that processes saw before the restore."""

LEASING, COMPARING = "leasing", "comparing"


class ServerIdentity(FunctionElement[str]):
    """SQL expression: the identity of the server. It changes when a replica takes over. Empty on SQLite."""

    type = sa.String()
    name = "server_identity"
    inherit_cache = True


_SPELLED = {
    "sqlite": "''",
    "postgresql": "substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)",  # the timeline: a promotion begins a new one
    "mysql": f"CAST(COALESCE({galera.IDENTITY}, @@server_id) AS CHAR)",  # any node of a cluster has what the others committed
}


@compiles(ServerIdentity)
def _spell_identity(element: ServerIdentity, compiler: Any, **_: object) -> str:
    return _SPELLED[compiler.dialect.name]


class Known(Object, frozen=True, kw_only=True):
    """The incarnation that a process compared with the cells, and the highest mark of it that the process saw."""

    uuid: str
    mark: int


class Incarnation(Object, frozen=True, kw_only=True):
    """The incarnation row of the API database.

    ``comparing``: it is being compared with the cells; ``reason`` says why, and what that waits for.
    ``moved``: the database is on another server than the one it was compared on.
    ``due``: the mark has not risen for (nearly) MARK_INTERVAL_S, or the database's clock was set back since it rose.
    """

    uuid: str
    mark: int
    comparing: bool
    reason: str
    moved: bool
    due: bool


_I = incarnation.c
_ONE = _I.id == 1
# 0.9: the process that raised it last must find it due at its next look. A mark of the future is due: the clock was set back.
_DUE = sa.not_(_I.changed_at.between(clock.Now() - MARK_INTERVAL_S * 0.9, clock.Now() + MARK_INTERVAL_S))
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
_STILL = sa.case((build_requests.c.state == HELD, HELD), else_="queued")
_LIFT = sa.update(build_requests).values(fence=build_requests.c.fence + FENCE_STEP, state=_STILL, owner=None, lease_until=0.0)
_LOST = sa.select(clock.Now() - _I.changed_at).where(_ONE)
_FREEZE = sa.update(operations).where(operations.c.open_for > "").values(frozen=sa.bindparam("why"), updated_at=clock.Now())
_LATER = tuple(
    sa.update(table).where(*where).values({column: column + sa.bindparam("seconds") for column in columns})
    for table, columns, where in (
        (operations, [operations.c.deadline], [operations.c.open_for > ""]),
        (build_requests, [build_requests.c.deadline, build_requests.c.held_until], []),
        (holds, [holds.c.expires_at], []),
    )
)
_RAISE_EPOCHS = sa.update(epochs).values(epoch=epochs.c.epoch + EPOCH_STEP)
_MARKS = Upsert(cell_marks, key=["cell_uuid"], replaced=["mark"])


def read(tx: ApiTransaction) -> Incarnation | None:
    """The incarnation; None: no super conductor has used this database yet."""
    row = tx.execute(_READ).one_or_none()
    if row is None:
        return None
    comparing = row.state == COMPARING
    moved, due = bool(row.moved), bool(row.due)
    return Incarnation(uuid=row.uuid, mark=row.mark, comparing=comparing, reason=row.reason, moved=moved, due=due)


def advance_mark(tx: ApiTransaction) -> Incarnation:
    """Raise the mark if it is due and no comparison is running; the first call creates the row. Returns the incarnation."""
    if not tx.execute(_ADVANCE).rowcount:
        row = {"id": 1, "uuid": str(uuid.uuid4()), "mark": 0, "server": "", "state": LEASING, "reason": "", "changed_at": 0.0}
        if dialect.insert_new(tx, incarnation, [row]):
            tx.execute(sa.update(incarnation).where(_ONE).values(server=ServerIdentity(), changed_at=clock.Now()))
    current = read(tx)
    if current is None:
        raise LookupError("the incarnation's row is gone")
    return current


def close(tx: ApiTransaction, known: str, reason: str) -> bool:
    """Begin a comparison: nobody leases requests until ``open_`` ends it. False if one is running, or ``known`` is not current.

    The fences of all requests rise in the same transaction, so their drivers lose them. All open operations are frozen: they take
    no step before they were compared (``cells/thaw.py``).
    """
    lost = tx.execute(_LOST).scalar_one_or_none()
    if not tx.execute(_CLOSE, {"of": known, "why": reason}).rowcount:
        return False
    tx.execute(_LIFT)
    tx.execute(_FREEZE, {"why": reason})
    _lift_deadlines(tx, lost)
    return True


def _lift_deadlines(tx: ApiTransaction, seconds: float | None) -> None:
    """What was to end by a time ends later, by the seconds since the last mark: nobody could work on it."""
    for later in _LATER if seconds is not None and seconds > 0 else ():
        tx.execute(later, {"seconds": seconds})


def store_reason(tx: ApiTransaction, reason: str) -> None:
    """Store what the comparison waits for."""
    tx.execute(_EXPLAIN, {"why": reason})


def open_(tx: ApiTransaction, known: str, new: str, mark: int) -> bool:
    """End the comparison: requests may be leased under the incarnation ``new``. False if somebody else ended it.

    All epochs rise, so that processes load their caches again: they may have seen a restored epoch with other rows.
    """
    lost = tx.execute(_LOST).scalar_one_or_none()
    if not tx.execute(_OPEN, {"of": known, "new": new, "at": mark}).rowcount:
        return False
    _lift_deadlines(tx, lost)
    bump_epoch(tx, Epoch.FEEDS)
    tx.execute(_RAISE_EPOCHS)
    return True


def confirmed_marks(tx: ApiTransaction) -> dict[str, int]:
    """The marks that cells have confirmed, by the cell's uuid."""
    return {row.cell_uuid: row.mark for row in tx.execute(sa.select(cell_marks))}


def confirm_marks(tx: ApiTransaction, marks: dict[str, int]) -> None:
    """Store that these cells have confirmed these marks, by the cell's uuid."""
    _MARKS(tx, [{"cell_uuid": cell, "mark": mark} for cell, mark in sorted(marks.items())])


def forget_confirmed_marks(tx: ApiTransaction) -> None:
    """Delete the confirmed marks: they are meaningless for a new incarnation."""
    tx.execute(sa.delete(cell_marks))


_OTHER = sa.or_(_I.uuid != sa.bindparam("incarnation"), _I.mark < sa.bindparam("mark"))
_IS_KNOWN = sa.bindparam("incarnation", type_=sa.String) != ""
CLOSED = (
    sa.exists().where(_ONE, sa.or_(_I.state != LEASING, _I.server != ServerIdentity(), sa.and_(_IS_KNOWN, _OTHER))).correlate(None)
)
"""SQL condition: a process that knows ``incarnation`` at ``mark`` may lease nothing (``incarnation`` empty: it knows none)."""
_CLOSED_FOR = sa.select(_I.reason).where(_ONE, CLOSED)


def parameters_of(known: Known | None) -> dict[str, str | int]:
    """The parameters of ``CLOSED``."""
    return {"incarnation": known.uuid, "mark": known.mark} if known else {"incarnation": "", "mark": 0}


def is_closed(tx: ApiTransaction, known: Known | None = None) -> bool:
    """Whether the API database is compared with its cells, or has to be. ``known``: what the caller knows; None: nothing."""
    return tx.execute(_CLOSED_FOR, parameters_of(known)).first() is not None


def refuse_unless_compared(tx: ApiTransaction, known: Known | None = None) -> None:
    """Raise errors.NotCompared if it ``is_closed``."""
    if is_closed(tx, known):
        raise not_compared()


def not_compared() -> errors.NotCompared:
    """Why what relies on the cells is refused meanwhile."""
    return errors.NotCompared(
        "The database may have been restored from a backup, and has not been compared with its cells yet: try again later"
    )


def if_compared(
    tx: ApiTransaction, known: Known | None, fn: Callable[Concatenate[ApiTransaction, P], T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """``fn`` in this transaction. Raises as ``refuse_unless_compared``."""
    refuse_unless_compared(tx, known)
    return fn(tx, *args, **kwargs)


def charged_if_compared(
    tx: ApiTransaction,
    stamp: Stamp,
    known: Known | None,
    fn: Callable[Concatenate[ApiTransaction, Stamp, P], T],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """The same of what a ledger writes."""
    refuse_unless_compared(tx, known)
    return fn(tx, stamp, *args, **kwargs)
