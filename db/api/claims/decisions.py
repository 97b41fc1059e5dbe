"""Scheduling decisions, kept for explanations: for a limited time, and at most DECISIONS_PER_BATCH of each batch."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from db import outbox
from db.api.rows.tables import decisions
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import KeyedDelete
from objects import errors, notification, stored
from objects.decision import Decision

DECISIONS_PER_BATCH = 20
"""Decisions kept per batch. A batch that waits for a cell is refused again every few seconds until its deadline."""

_INSERT = sa.insert(decisions)
_OF_BATCH = (
    sa.select(decisions.c.decision)
    .where(decisions.c.batch_id == sa.bindparam("batch"))
    .order_by(decisions.c.at.desc(), decisions.c.id)
    .limit(DECISIONS_PER_BATCH)
)
_BY_ID = sa.select(decisions.c.decision).where(decisions.c.id == sa.bindparam("key"))
_SURPLUS = (
    sa.select(decisions.c.id)
    .where(decisions.c.batch_id == sa.bindparam("batch"))
    .order_by(decisions.c.at.desc(), decisions.c.id)
    .offset(DECISIONS_PER_BATCH)
    .limit(dialect.IN_LIST_SIZE)
)
_OLD = (
    # only columns of the index, so that the decisions themselves, which are large, are not read
    sa.select(decisions.c.id, decisions.c.batch_id)
    .where(decisions.c.batch_id >= sa.bindparam("after"), decisions.c.at < sa.bindparam("before"))
    .order_by(decisions.c.batch_id, decisions.c.at)
    .limit(sa.bindparam("most"))
)
_DELETE = KeyedDelete(decisions.c.id, returning=[decisions.c.id])


def store_all(tx: ApiTransaction, new_decisions: Sequence[Decision]) -> None:
    """Store these decisions and delete old ones. A refused batch keeps DECISIONS_PER_BATCH; a waiting batch's last one is replaced.

    One statement if all were placed, one or two more for batches that wait, two for each refused batch.
    """
    if not new_decisions:
        return
    rows = [{"id": d.id, "batch_id": d.batch_id, "at": d.at, "decision": stored.dump_value(d)} for d in new_decisions]
    _DELETE(tx, sorted(d.id for d in new_decisions if d.waits))
    tx.execute(_INSERT, rows)
    final = [d for d in new_decisions if not d.waits]
    if final and outbox.is_kept(tx):
        outbox.put_notices(tx, "api", notification.of_decisions(final))
    for batch in sorted({d.batch_id for d in final if d.is_refused}):
        _DELETE(tx, sorted(tx.execute(_SURPLUS, {"batch": batch}).scalars()))


def of_batch(tx: ApiTransaction, batch_id: str) -> list[Decision]:
    """The newest DECISIONS_PER_BATCH decisions about the batch or some of its instances, oldest first, without unreadable ones."""
    texts = tx.execute(_OF_BATCH, {"batch": batch_id}).scalars().all()
    decoded = [stored.load_or_none(text, Decision) for text in reversed(texts)]
    return [decision for decision in decoded if decision is not None]


def get(tx: ApiTransaction, decision_id: str) -> Decision:
    """The decision with this id. Raises NotFound, and Invalid if it cannot be read."""
    text = tx.execute(_BY_ID, {"key": decision_id}).scalar()
    if text is None:
        raise errors.NotFound(f"Decision '{decision_id[:80]}' not found: 'explain' shows the ids. Old decisions are deleted.")
    decision = stored.load_or_none(text, Decision)
    if decision is None:
        raise errors.Invalid(f"Decision '{decision_id}' cannot be read: a newer release stored it, or its row is damaged.")
    return decision


def trim_decisions(tx: ApiTransaction, before: float, after: str = "", most: int = dialect.IN_LIST_SIZE) -> tuple[int, str | None]:
    """Delete at most ``most`` decisions made before ``before`` (seconds since the epoch), of batches from ``after`` on.

    Returns how many, and the batch id to continue from; None at the end.
    """
    old = tx.execute(_OLD, {"before": before, "after": after, "most": most}).all()
    gone = _DELETE(tx, sorted(row.id for row in old))
    return len(gone), old[-1].batch_id if len(old) == most else None
