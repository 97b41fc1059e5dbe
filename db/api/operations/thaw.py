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
    .where(table.c.uuid.in_(dialect.uuids_parameter()), table.c.open_for.is_not(None))
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


def list_frozen(tx: ApiTransaction, limit: int, after: str = "") -> list[OpenOperation]:
    """At most ``limit`` frozen operations with their bodies, by server, after ``after``."""
    rows = tx.execute(_ALL, {"after": after, "limit": limit}).all()
    order = {row.uuid: row.open_for for row in rows}
    opened = operations.with_bodies(tx, list(order)) if order else []
    return sorted(opened, key=lambda frozen_operation: order[frozen_operation.operation.uuid])


def count_frozen(tx: ApiTransaction) -> tuple[int, str]:
    """How many operations are frozen, and why one of them is."""
    row = tx.execute(_COUNT).one()
    return row[0], row[1] or ""


def freeze_operations(tx: ApiTransaction, uuids: Collection[str], why: str, now: float) -> None:
    """These operations take no step before they were compared with their cells, for this reason."""
    if uuids:
        tx.execute(_FREEZE, {"uuids": sorted(uuids), "why": why, "now": now})


def store_reason(tx: ApiTransaction, uuid: str, why: str) -> None:
    """Store why the operation stays frozen."""
    tx.execute(_WHY, {"op": uuid, "why": why})


def unfreeze_operations(tx: ApiTransaction, uuids: Collection[str], now: float) -> None:
    """Let these operations go on as they are: what could contradict them is lost for ever."""
    for opened in operations.lock_operations(tx, uuids, _OPEN, frozen=True).operations:
        _let_go(tx, opened, opened.operation.state, now, is_confirmed=opened.operation.held)


def carry_out(tx: ApiTransaction, stamp: Stamp, uuid: str, verdict: OperationVerdict, now: float) -> Stepped:
    """What was decided about a frozen operation. Returns it, and the bodies that cells have to delete."""
    if verdict.fate is Fate.UNDECIDED or not (read := operations.get(tx, [uuid])):
        return NOTHING
    opened_before = read[0]
    involved = {opened_before.server_uuid, opened_before.source_uuid, opened_before.twin_uuid, verdict.body, verdict.twin} - {None}
    steps.lock_requests(tx, [opened for opened in involved if opened is not None])
    bodies = operations.lock_bodies(tx, [opened for opened in involved if opened is not None])
    locked = operations.lock_operations(tx, [uuid], _OPEN, frozen=True)
    if not locked.operations:
        return NOTHING
    [opened] = locked.operations
    home = bodies[opened.operation.server_uuid]
    shown = operations.lock_bodies(tx, [home.body_uuid])[home.body_uuid] if home.body_uuid is not None else home
    match verdict.fate:
        case Fate.RESUME:
            _let_go(tx, opened, verdict.state or opened.operation.state, now, is_confirmed=verdict.asked)
            return Stepped(operations=(opened,))
        case Fate.RETURN:
            return _return_to_source(tx, stamp, opened, shown, now, is_confirmed=verdict.asked)
        case Fate.OFFLOAD:
            _let_go(tx, opened, OperationState.SHELVED, now, is_confirmed=True)
            return shelving.offload_servers(tx, stamp, [uuid], now, has_left=True)
        case Fate.DELETE:
            return _delete(tx, stamp, opened, now, image=verdict.image)
        case _:
            body = bodies.get(verdict.body or "")
            if body is None:
                return NOTHING
            stepped = _end_with_body(tx, stamp, opened, shown, body, verdict, now)
            if verdict.twin in bodies:
                charged = operations.lock_bodies(tx, [body.uuid, verdict.twin])
                accepting.reopen(tx, charged[body.uuid], charged[verdict.twin], now, RESTORED)
            return stepped


def _let_go(tx: ApiTransaction, opened: OpenOperation, state: OperationState, now: float, *, is_confirmed: bool) -> None:
    tx.execute(_THAW, {"op": opened.operation.uuid, "to": state, "asked": is_confirmed or opened.operation.held, "now": now})


def _return_to_source(
    tx: ApiTransaction, stamp: Stamp, opened: OpenOperation, shown: Body, now: float, *, is_confirmed: bool
) -> Stepped:
    """The server is the source, which gets its power back once the twin is seen as ended."""
    if opened.source is not None and shown.uuid != opened.source.uuid:
        steps.point_servers(tx, [(opened, opened.source, shown)], now)
    twins = [opened.twin] if opened.twin is not None else []
    deleted = steps.drop_bodies(tx, stamp, twins, {}, now)
    _let_go(tx, opened, OperationState.UNDOING, now, is_confirmed=is_confirmed)
    steps.store_fault(tx, opened.operation.uuid, RESTORED)
    return Stepped(operations=(opened,), deleted=tuple(deleted))


def _delete(tx: ApiTransaction, stamp: Stamp, opened: OpenOperation, now: float, *, image: bool) -> Stepped:
    """The server was deleted. An image that it made stays."""
    if opened.operation.kind.makes_image and image:
        _complete_image(tx, opened, now)
    else:
        _let_go(tx, opened, opened.operation.state, now, is_confirmed=False)
    deleted = steps.delete(tx, stamp, opened.operation.server_uuid, NOBODY, now, ignores_lock=True)
    return Stepped(operations=(opened,), deleted=tuple(deleted or ()))


def _complete_image(tx: ApiTransaction, opened: OpenOperation, now: float) -> None:
    server_images.complete_images(tx, [(opened.operation, None)], now)
    operations.end_operations(tx, [opened.operation], Outcome.DONE, now)


def _end_with_body(
    tx: ApiTransaction, stamp: Stamp, opened: OpenOperation, shown: Body, body: Body, verdict: OperationVerdict, now: float
) -> Stepped:
    """It has ended: the server is ``body``. Of its own bodies those are deleted here that have ended in their cells."""
    operation = opened.operation
    if shown.uuid != body.uuid:
        steps.point_servers(tx, [(opened, body, shown)], now)
    steps.charge_twins(tx, [opened] if opened.twin is not None and body.uuid == opened.twin.uuid else [])
    ended = [
        other
        for other in (opened.source, opened.twin)
        if other is not None and other.uuid != body.uuid and other.uuid in verdict.gone
    ]
    deleted = steps.drop_bodies(tx, stamp, ended, {}, now)
    if operation.kind.makes_image and verdict.image:
        _complete_image(tx, opened, now)
    else:
        came_back = operation.kind in (OperationKind.SOFT_DELETE, OperationKind.CREATE_IMAGE, OperationKind.CREATE_BACKUP)
        came_back = came_back or (operation.kind.is_move and body.uuid == operation.source_uuid)
        operations.end_operations(tx, [operation], Outcome.GIVEN_UP if came_back else Outcome.DONE, now, RESTORED)
    return Stepped(operations=(opened,), deleted=tuple(deleted))
