"""Mappings and build requests put right where they contradict each other: each write holds only what is final against it.

Two facts carry these guards (``docs/protocol.md``): a mapping that was decided stays as it is, and a request that is gone never
comes back by itself. So whoever works on the request at the same time either lost long ago or makes the write find nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from db.api.tables import allocations, build_requests, instance_mappings
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index

OUT_OF_REACH = 2**32
"""Added to the highest fence known of a request that is put back: nobody who drove the lost one can hold such a fence."""

_M = instance_mappings.c
_MAPPED = sa.exists().where(_M.instance_uuid == build_requests.c.instance_uuid)
_OPEN = _MAPPED.where(_M.cell_uuid.is_(None), _M.deleted.is_(sa.false()))
_DROP = sa.delete(build_requests).where(build_requests.c.instance_uuid == sa.bindparam("uuid"), ~_OPEN)
_UNDECIDED = (
    _M.instance_uuid == sa.bindparam("uuid"),
    _M.cell_uuid.is_(None),
    _M.deleted.is_(sa.false()),
    ~sa.exists().where(build_requests.c.instance_uuid == _M.instance_uuid),
)
_LOST = by_index(
    sa.select(_M.batch_id, _M.fence, _M.created_at, allocations.c.fence.label("claimed"))
    .select_from(instance_mappings.outerjoin(allocations, allocations.c.instance_uuid == _M.instance_uuid))
    .where(*_UNDECIDED)
    .with_for_update(of=instance_mappings),
    instance_mappings,
)


def drop_requests(tx: ApiTransaction, uuids: Sequence[str]) -> int:
    """Remove build requests whose mapping is decided, or is not there; returns how many."""
    return sum(tx.execute(_DROP, {"uuid": uuid}).rowcount for uuid in sorted(uuids))


def queue_again(tx: ApiTransaction, uuids: Sequence[str], now: float) -> int:
    """Put back the requests of servers that are neither queued nor anywhere, past their deadline: they end as ERROR in cell0."""
    put_back = 0
    for uuid in sorted(uuids):
        lost = tx.execute(_LOST, {"uuid": uuid}).one_or_none()
        if lost is None:
            continue
        row = {
            "instance_uuid": uuid,
            "batch_id": lost.batch_id,
            "state": "queued",
            "lease_until": 0.0,
            "fence": max(lost.fence, lost.claimed or 0) + OUT_OF_REACH,
            "deadline": lost.created_at,
            "priority": 0,
            "created_at": lost.created_at,
        }
        put_back += dialect.insert_new(tx, build_requests, [row])
    return put_back
