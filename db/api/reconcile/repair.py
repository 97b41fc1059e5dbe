"""Repair mappings and build requests that contradict each other. Every write is conditional on facts that are final.

The guards rely on two facts (``docs/protocol.md``): a decided mapping stays as it is, and a deleted request never comes back by
itself. So a conductor that works on the request at the same time has either lost already, or the write matches no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from db.api.rows import spec_fields
from db.api.rows.tables import allocations, build_requests, instance_mappings, request_specs
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from objects import stored
from objects.lifecycle import FENCE_STEP
from objects.spec import RequestSpec

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
    """Delete build requests whose mapping is decided or missing; return how many."""
    return sum(tx.execute(_DROP, {"uuid": uuid}).rowcount for uuid in sorted(uuids))


def queue_again(tx: ApiTransaction, uuids: Sequence[str], now: float) -> int:
    """Queue servers again that have neither a request nor a cell; return how many.

    The new requests are past their deadline, so the servers end as ERROR in cell0.
    """
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
            "fence": max(lost.fence, lost.claimed or 0) + FENCE_STEP,
            "deadline": lost.created_at,
            "priority": 0,
            "created_at": lost.created_at,
        }
        put_back += dialect.insert_new(tx, build_requests, [row])
    return put_back


def put_back_specs(tx: ApiTransaction, specs: Mapping[str, str], now: float) -> int:
    """Insert the missing ones of these specs (stored texts by batch id); return how many."""
    decoded = {batch: stored.load_or_none(text, RequestSpec) for batch, text in sorted(specs.items())}
    rows = [
        {"batch_id": batch, "spec": specs[batch], "created_at": now, **spec_fields.columns_of(spec)}
        for batch, spec in decoded.items()
    ]
    written = dialect.insert_new(tx, request_specs, rows)
    spec_fields.label_batches(tx, decoded)
    return written
