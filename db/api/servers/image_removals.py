"""Snapshots that nothing needs any more, until they are removed from the image store (``conductor/tidy.py``).

A row is written in the transaction that makes the snapshot useless.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from db.api.rows.tables import image_removals, instance_mappings
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import KeyedDelete
from objects.task import TaskState

_R = image_removals.c
_M = instance_mappings.c
_MAY_STILL_BE_WRITTEN = sa.exists().where(
    _M.instance_uuid == _R.written_by,
    _M.state != "deleted",
    sa.or_(_M.deleted == sa.true(), _M.task_state.not_in((TaskState.DONE, TaskState.FAILED))),
)
"""The host of the body has not told that its latest task is over, nor that it has ended."""
_DUE = (
    sa.select(_R.image_id)
    .where(_R.image_id > sa.bindparam("after"), ~_MAY_STILL_BE_WRITTEN)
    .order_by(_R.image_id)
    .limit(sa.bindparam("limit"))
)
ANY_DUE = sa.exists().where(_R.image_id > "", ~_MAY_STILL_BE_WRITTEN)
"""SQL condition: ``list_due`` would return some."""
_FORGET = KeyedDelete(_R.image_id, returning=[_R.image_id])


def add_removals(tx: ApiTransaction, writers: Mapping[str, str | None], now: float) -> None:
    """Have these snapshots removed. ``writers``: by snapshot, the body whose host may still be at it; None: none."""
    rows = [{"image_id": image, "written_by": body, "since": now} for image, body in sorted(writers.items())]
    dialect.insert_new(tx, image_removals, rows)


def list_due(tx: ApiTransaction, limit: int, after: str = "") -> Sequence[str]:
    """At most ``limit`` snapshots that can be removed now, in order, after ``after``."""
    return tx.execute(_DUE, {"after": after, "limit": limit}).scalars().all()


def forget_removals(tx: ApiTransaction, image_ids: Collection[str]) -> None:
    """These snapshots are removed."""
    _FORGET(tx, sorted(image_ids))
