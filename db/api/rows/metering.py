"""Count the durable queue and open operations, each in one statement whose cost grows only with what it counts."""

from __future__ import annotations

import sqlalchemy as sa

from db.api.rows.tables import build_requests, instance_mappings
from db.api.rows.tables import operations as operation_rows
from db.sql.connection import ApiTransaction
from objects.hold import HELD
from objects.operation import OperationState
from objects.waiting import WaitingCount

REQUESTS_LIMIT = 20_000
"""Requests whose project is looked up. The rest of a longer queue is counted without projects."""

WAITS = sa.and_(
    build_requests.c.state != HELD,
    ~sa.exists().where(
        operation_rows.c.twin_uuid == build_requests.c.instance_uuid, operation_rows.c.state == OperationState.HOLDING
    ),
)
"""SQL condition on build requests: it waits for a host. The twin of an operation in *holding* has one, and waits for its source.
A held request has one, and waits for its user."""

_SOME = sa.select(build_requests.c.instance_uuid, build_requests.c.created_at).where(WAITS).limit(REQUESTS_LIMIT).subquery()
_ALL = sa.select(sa.func.count().label("depth")).select_from(build_requests).where(WAITS).subquery()
_QUEUE = (
    sa.select(
        instance_mappings.c.project_id,
        sa.func.count().label("number"),
        sa.func.min(_SOME.c.created_at).label("oldest"),
        sa.select(_ALL.c.depth).scalar_subquery().label("depth"),
    )
    .select_from(_SOME.join(instance_mappings, instance_mappings.c.instance_uuid == _SOME.c.instance_uuid))
    .group_by(instance_mappings.c.project_id)
)


def count_queued(tx: ApiTransaction, names: int) -> list[WaitingCount]:
    """Requests in the durable queue: of the ``names`` projects with the most requests, and of all others together (name "")."""
    rows = sorted(tx.execute(_QUEUE).all(), key=lambda row: (-row.number, row.project_id))
    counts = [WaitingCount(name=row.project_id, count=row.number, oldest=row.oldest) for row in rows[:names]]
    rest = (rows[0].depth if rows else 0) - sum(waiting.count for waiting in counts)
    if rest > 0:
        counts.append(WaitingCount(name="", count=rest, oldest=min(row.oldest for row in rows[names:] or rows)))
    return counts


_OPEN = (
    sa.select(operation_rows.c.state, sa.func.count().label("number"), sa.func.min(operation_rows.c.created_at).label("oldest"))
    .where(operation_rows.c.open_for.is_not(None))
    .group_by(operation_rows.c.state)
    .order_by(operation_rows.c.state)
)


def open_operations(tx: ApiTransaction) -> list[WaitingCount]:
    """Operations that have not ended, by state."""
    return [WaitingCount(name=row.state, count=row.number, oldest=row.oldest) for row in tx.execute(_OPEN)]
