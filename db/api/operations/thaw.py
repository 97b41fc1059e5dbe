"""Let frozen operations go on, or end them, by what their cells have shown (``cells/thaw.py``).

A frozen operation takes no other step. ``db/api/rows/incarnation.py`` freezes all that are open.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from db.api.operations import accepting, operations, shelving, steps
from db.api.operations.operations import Body, OpenOperation
from db.api.operations.steps import NOTHING, Stepped
from db.api.rows.ledger import Stamp
from db.api.rows.tables import operations as table
from db.api.servers import server_images
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from objects.operation import NOBODY, OperationKind, OperationState, Outcome
from objects.verdict import Fate, OperationVerdict

RESTORED = "The API database was restored from a backup that was older than the end of this operation."

_OPEN = frozenset(OperationState) - {OperationState.ENDED}
_FREEZE = by_index(
    sa.update(table)
    .where(table.c.uuid.in_(dialect.uuids()), table.c.open_for.is_not(None))
    .values(frozen=sa.bindparam("why"), updated_at=sa.bindparam("now")),
    table,
)
_WHY = sa.update(table).where(table.c.uuid == sa.bindparam("op"), table.c.frozen.is_not(None)).values(frozen=sa.bindparam("why"))
_THAW = (
    sa.update(table)
    .where(table.c.uuid == sa.bindparam("op"))
    .values(frozen=sa.null(), state=sa.bindparam("to"), held=sa.bindparam("asked"), updated_at=sa.bindparam("now"))
)
_ALL = (
    sa.select(table.c.uuid, table.c.open_for)
    .where(table.c.open_for > sa.bindparam("after"), table.c.frozen.is_not(None))
    .order_by(table.c.open_for)
    .limit(sa.bindparam("limit"))
)
_COUNT = sa.select(sa.func.count(), sa.func.min(table.c.frozen)).where(table.c.open_for > "", table.c.frozen.is_not(None))


def frozen(tx: ApiTransaction, limit: int, after: str = "") -> list[OpenOperation]:
    """At most ``limit`` frozen operations with their bodies, by server, after ``after``."""
    found = tx.execute(_ALL, {"after": after, "limit": limit}).all()
    order = {row.uuid: row.open_for for row in found}
    opened = operations.with_bodies(tx, list(order)) if order else []
    return sorted(opened, key=lambda each: order[each.operation.uuid])


def count(tx: ApiTransaction) -> tuple[int, str]:
    """How many operations are frozen, and why one of them is."""
    row = tx.execute(_COUNT).one()
    return row[0], row[1] or ""


def freeze(tx: ApiTransaction, uuids: Collection[str], why: str, now: float) -> None:
    """These operations take no step before they were compared with their cells, for this reason."""
    if uuids:
        tx.execute(_FREEZE, {"uuids": sorted(uuids), "why": why, "now": now})


def explain(tx: ApiTransaction, uuid: str, why: str) -> None:
    """Store why the operation stays frozen."""
    tx.execute(_WHY, {"op": uuid, "why": why})


def unfreeze(tx: ApiTransaction, uuids: Collection[str], now: float) -> None:
    """Let these operations go on as they are: what could contradict them is lost for ever."""
    for each in operations.lock(tx, uuids, _OPEN, frozen=True).operations:
        _let_go(tx, each, each.operation.state, now, asked=each.operation.held)


def carry_out(tx: ApiTransaction, stamp: Stamp, uuid: str, verdict: OperationVerdict, now: float) -> Stepped:
    """What was decided about a frozen operation. Returns it, and the bodies that cells have to delete."""
    if verdict.fate is Fate.UNDECIDED or not (read := operations.get(tx, [uuid])):
        return NOTHING
    found = read[0]
    involved = {found.server_uuid, found.source_uuid, found.twin_uuid, verdict.body, verdict.twin} - {None}
    steps.lock_requests(tx, [each for each in involved if each is not None])
    bodies = operations.lock_bodies(tx, [each for each in involved if each is not None])
    locked = operations.lock(tx, [uuid], _OPEN, frozen=True)
    if not locked.operations:
        return NOTHING
    [each] = locked.operations
    home = bodies[each.operation.server_uuid]
    shown = operations.lock_bodies(tx, [home.body_uuid])[home.body_uuid] if home.body_uuid is not None else home
    match verdict.fate:
        case Fate.RESUME:
            _let_go(tx, each, verdict.state or each.operation.state, now, asked=verdict.asked)
            return Stepped(operations=(each,))
        case Fate.RETURN:
            return _return(tx, stamp, each, shown, now, asked=verdict.asked)
        case Fate.OFFLOAD:
            _let_go(tx, each, OperationState.SHELVED, now, asked=True)
            return shelving.offload(tx, stamp, [uuid], now, has_left=True)
        case Fate.DELETE:
            return _delete(tx, stamp, each, now, image=verdict.image)
        case _:
            body = bodies.get(verdict.body or "")
            if body is None:
                return NOTHING
            stepped = _end(tx, stamp, each, shown, body, verdict, now)
            if verdict.twin in bodies:
                charged = operations.lock_bodies(tx, [body.uuid, verdict.twin])
                accepting.reopen(tx, charged[body.uuid], charged[verdict.twin], now, RESTORED)
            return stepped


def _let_go(tx: ApiTransaction, each: OpenOperation, state: OperationState, now: float, *, asked: bool) -> None:
    tx.execute(_THAW, {"op": each.operation.uuid, "to": state, "asked": asked or each.operation.held, "now": now})


def _return(tx: ApiTransaction, stamp: Stamp, each: OpenOperation, shown: Body, now: float, *, asked: bool) -> Stepped:
    """The server is the source, which gets its power back once the twin is seen as ended."""
    if each.source is not None and shown.uuid != each.source.uuid:
        steps.point(tx, [(each, each.source, shown)], now)
    twins = [each.twin] if each.twin is not None else []
    deleted = steps.drop(tx, stamp, twins, {}, now)
    _let_go(tx, each, OperationState.UNDOING, now, asked=asked)
    steps.explain(tx, each.operation.uuid, RESTORED)
    return Stepped(operations=(each,), deleted=tuple(deleted))


def _delete(tx: ApiTransaction, stamp: Stamp, each: OpenOperation, now: float, *, image: bool) -> Stepped:
    """The server was deleted. An image that it made stays."""
    if each.operation.kind.makes_image and image:
        _complete(tx, each, now)
    else:
        _let_go(tx, each, each.operation.state, now, asked=False)
    deleted = steps.delete(tx, stamp, each.operation.server_uuid, NOBODY, now, ignores_lock=True)
    return Stepped(operations=(each,), deleted=tuple(deleted or ()))


def _complete(tx: ApiTransaction, each: OpenOperation, now: float) -> None:
    server_images.complete(tx, [(each.operation, None)], now)
    operations.end(tx, [each.operation], Outcome.DONE, now)


def _end(
    tx: ApiTransaction, stamp: Stamp, each: OpenOperation, shown: Body, body: Body, verdict: OperationVerdict, now: float
) -> Stepped:
    """It has ended: the server is ``body``. Of its own bodies those are deleted here that have ended in their cells."""
    operation = each.operation
    if shown.uuid != body.uuid:
        steps.point(tx, [(each, body, shown)], now)
    steps.charge(tx, [each] if each.twin is not None and body.uuid == each.twin.uuid else [])
    ended = [own for own in (each.source, each.twin) if own is not None and own.uuid != body.uuid and own.uuid in verdict.gone]
    deleted = steps.drop(tx, stamp, ended, {}, now)
    if operation.kind.makes_image and verdict.image:
        _complete(tx, each, now)
    else:
        came_back = operation.kind in (OperationKind.SOFT_DELETE, OperationKind.CREATE_IMAGE, OperationKind.CREATE_BACKUP)
        came_back = came_back or (operation.kind.moves and body.uuid == operation.source_uuid)
        operations.end(tx, [operation], Outcome.GIVEN_UP if came_back else Outcome.DONE, now, RESTORED)
    return Stepped(operations=(each,), deleted=tuple(deleted))
