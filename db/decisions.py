"""Scheduling decisions, kept so that each can be explained afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from db.tables.api import decisions
from objects import stored
from objects.decision import Decision

_INSERT = sa.insert(decisions)
_GET = sa.select(decisions.c.decision).where(decisions.c.id == sa.bindparam("key"))
_LATEST = (
    sa.select(decisions.c.decision)
    .where(decisions.c.batch_id == sa.bindparam("batch"))
    .order_by(decisions.c.at.desc(), decisions.c.id)
    .limit(1)
)


def store(tx: Connection, decision: Decision) -> None:
    store_all(tx, [decision])


def store_all(tx: Connection, made: Sequence[Decision]) -> None:
    """In one statement."""
    if made:
        rows = [{"id": d.id, "batch_id": d.batch_id, "at": d.at, "decision": stored.dump(d)} for d in made]
        tx.execute(_INSERT, rows)


def get(tx: Connection, decision_id: str) -> Decision | None:
    """The decision a Selection or a NoValidHost names."""
    text: str | None = tx.execute(_GET, {"key": decision_id}).scalar_one_or_none()
    return None if text is None else stored.load(text, Decision)


def latest(tx: Connection, batch_id: str) -> Decision | None:
    """The last decision about any of the batch's instances."""
    text: str | None = tx.execute(_LATEST, {"batch": batch_id}).scalar_one_or_none()
    return None if text is None else stored.load(text, Decision)


def trim(tx: Connection, before: float) -> int:
    """Forget decisions made before ``before`` (seconds since the epoch); return how many."""
    return tx.execute(sa.delete(decisions).where(decisions.c.at < before)).rowcount
