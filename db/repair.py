"""Mappings and build requests put right where they contradict each other: each write holds only what is final against it.

Two facts carry these guards (``docs/protocol.md``): a mapping that was decided stays as it is, and a request that is gone never
comes back by itself. So whoever works on the request at the same time either lost long ago or makes the write find nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from db import dialect
from db.audit_cell import Row
from db.keyed import by_index
from db.tables.api import allocations, build_requests, instance_mappings
from objects.instance import State

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
_ADOPT = (
    sa.update(instance_mappings)
    .where(*_UNDECIDED)
    .values(
        cell_uuid=sa.bindparam("to_cell"),
        fence=sa.bindparam("to_fence"),
        host=sa.bindparam("to_host"),
        node=sa.bindparam("to_node"),
        updated_at=sa.bindparam("now"),
    )
)


def drop_requests(tx: Connection, uuids: Sequence[str]) -> int:
    """Remove build requests whose mapping is decided, or is not there; returns how many."""
    return sum(tx.execute(_DROP, {"uuid": uuid}).rowcount for uuid in sorted(uuids))


def queue_again(tx: Connection, uuids: Sequence[str], now: float) -> int:
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


def adopt(tx: Connection, rows: Sequence[Row], cell_uuid: str, now: float) -> int:
    """Map these rows of a cell to it, where nothing says that they belong elsewhere; returns how many."""
    adopted = 0
    for row in sorted(rows, key=lambda each: each.uuid):
        values = {"uuid": row.uuid, "to_cell": cell_uuid, "to_fence": row.fence, "to_host": row.host, "to_node": row.node}
        adopted += tx.execute(_ADOPT, values | {"now": now}).rowcount
        adopted += dialect.insert_new(tx, instance_mappings, [_mapping(row, cell_uuid, now)])
    return adopted


def _mapping(row: Row, cell_uuid: str, now: float) -> dict[str, object]:
    """``seen`` is behind the row's version, so that the feed may tell the rest."""
    return {
        "instance_uuid": row.uuid,
        "batch_id": row.batch_id or row.uuid,
        "cell_uuid": cell_uuid,
        "deleted": False,
        "fence": row.fence,
        "seen": max(0, row.version - 1),
        "project_id": row.project_id,
        "user_id": row.user_id,
        "name": row.name,
        "launch_index": row.launch_index,
        "created_at": row.created_at,
        "state": {State.ACTIVE: "active", State.ERROR: "error"}.get(row.state, "building"),
        "host": row.host,
        "node": row.node,
        "availability_zone": row.availability_zone,
        "updated_at": now,
    }
