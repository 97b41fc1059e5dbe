"""Holds: batches that keep their claims and wait, until they are booted, released or expired (``docs/protocol.md``).

A hold has a row from its acceptance on. The one that deletes the row decides: ``boot_hold`` queues the requests, ``release_hold``
and ``expire_hold`` delete them with their claims. A conductor parks requests (``park_requests``) only while the row is there, and
writes the row, so that none of them stays held without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from db.api.queue import builds
from db.api.rows import incarnation
from db.api.rows.incarnation import Known
from db.api.rows.ledger import Stamp
from db.api.rows.tables import allocations, build_requests, cell_mappings, holds, instance_mappings, inventories
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from db.sql.readable import convert_readable
from objects import errors
from objects.cell import CELL0_UUID
from objects.hold import HELD, HeldServer, Hold
from objects.operation import NOBODY, Initiator

_H, _R, _M = holds.c, build_requests.c, instance_mappings.c
_ONE = _H.batch_id == sa.bindparam("batch")
_OPEN = sa.update(holds).where(_ONE).values(held_at=sa.bindparam("now"))
_PARK = by_index(
    sa.update(build_requests)
    .where(_R.instance_uuid == sa.bindparam("uuid"), _R.state == "leased", _R.fence == sa.bindparam("old_fence"))
    .values(state=HELD, owner=None, lease_until=0.0, fence=_R.fence + 1, deadline=_R.held_until),
    build_requests,
)
_QUEUE = by_index(
    sa.update(build_requests)
    .where(_R.batch_id == sa.bindparam("batch"), _R.state == HELD)
    .values(state="queued", lease_until=sa.bindparam("now"), deadline=sa.bindparam("until")),
    build_requests,
    "ix_build_requests_batch_id",
)
_IS_OVER = _H.expires_at <= sa.bindparam("now")
_EXPIRED = sa.select(_H.batch_id).where(_IS_OVER).order_by(_H.expires_at).limit(sa.bindparam("limit"))
_END = sa.delete(holds).where(_ONE)
_END_EXPIRED = _END.where(_IS_OVER, ~incarnation.CLOSED)
_MEMBERS = by_index(
    sa.select(_M.instance_uuid, _M.cell_uuid)
    .where(
        _M.batch_id == sa.bindparam("batch"),
        _M.deleted == sa.false(),
        sa.or_(_M.cell_uuid.is_(None), _M.cell_uuid == CELL0_UUID),
    )
    .order_by(_M.instance_uuid),
    instance_mappings,
    "ix_instance_mappings_batch_id",
)


def begin_hold(tx: ApiTransaction, batch_id: str, project_id: str, user_id: str, now: float, until: float, limit: int) -> None:
    """Open the hold, in the transaction that accepts its batch. Holds at the same moment may exceed ``limit`` by their number.

    Raises errors.OverQuota if there are ``limit`` holds.
    """
    if tx.execute(sa.select(sa.func.count()).select_from(holds)).scalar_one() >= limit:
        raise errors.OverQuota(f"There are {limit} holds, as many as [api] max_holds allows: boot or release one first.")
    row = {"batch_id": batch_id, "project_id": project_id, "user_id": user_id, "created_at": now, "expires_at": until}
    tx.execute(sa.insert(holds), row)


def park_requests(tx: ApiTransaction, batches: Mapping[str, Mapping[str, int]], now: float) -> set[str]:
    """Hold requests that have their claims; return those that are held now.

    ``batches``: by batch ID, the fences under which its requests are leased. Requests of a batch whose hold is gone stay leased.
    """
    parked: set[str] = set()
    for batch_id, fences in sorted(batches.items()):
        if not tx.execute(_OPEN, {"batch": batch_id, "now": now}).rowcount:
            continue
        for uuid in sorted(fences):
            if tx.execute(_PARK, {"uuid": uuid, "old_fence": fences[uuid]}).rowcount:
                parked.add(uuid)
    return parked


def boot_hold(tx: ApiTransaction, batch_id: str, now: float, deadline: float) -> bool:
    """End the hold, and queue its requests to be built until ``deadline``; False if the hold is gone.

    Requests that have no host yet are built without being held.
    """
    if not tx.execute(_END, {"batch": batch_id}).rowcount:
        return False
    tx.execute(_QUEUE, {"batch": batch_id, "now": now, "until": deadline})
    return True


def release_hold(tx: ApiTransaction, stamp: Stamp, batch_id: str, now: float, initiator: Initiator = NOBODY) -> bool:
    """End the hold, and delete its servers with their claims; False if the hold is gone."""
    if not tx.execute(_END, {"batch": batch_id}).rowcount:
        return False
    _delete_members(tx, stamp, batch_id, now, initiator)
    return True


def list_expired(tx: ApiTransaction, now: float, limit: int) -> list[str]:
    """Batches whose holds have expired, the earliest first. ``now``: by this database's clock."""
    return list(tx.execute(_EXPIRED, {"now": now, "limit": limit}).scalars())


def expire_hold(tx: ApiTransaction, stamp: Stamp, batch_id: str, now: float, known: Known | None = None) -> bool:
    """``release_hold`` for a hold whose time is over; False if it is gone, or is not over.

    ``known``: as for ``leases.lease_batches``. In a restored database a hold may have been booted before: its servers would be
    lost.
    """
    values = {"batch": batch_id, "now": now} | incarnation.parameters_of(known)
    if not tx.execute(_END_EXPIRED, values).rowcount:
        return False
    _delete_members(tx, stamp, batch_id, now, NOBODY)
    return True


def _delete_members(tx: ApiTransaction, stamp: Stamp, batch_id: str, now: float, initiator: Initiator) -> None:
    """Delete the servers that no cell has, and those that found no host."""
    for row in tx.execute(_MEMBERS, {"batch": batch_id}).all():
        undecided = row.cell_uuid is None
        builds.delete(tx, stamp, row.instance_uuid, project_id=None, now=now, initiator=initiator, undecided_only=undecided)


# -- reading -------------------------------------------------------------------------------------------------------------------

_SERVERS = (
    sa.select(
        _M.batch_id,
        _M.instance_uuid,
        _M.name,
        _M.fault,
        _R.state.label("request_state"),
        cell_mappings.c.name.label("cell"),
        inventories.c.host,
        inventories.c.node,
    )
    .select_from(
        instance_mappings.outerjoin(build_requests, _R.instance_uuid == _M.instance_uuid)
        .outerjoin(allocations, allocations.c.instance_uuid == _M.instance_uuid)
        .outerjoin(inventories, inventories.c.id == allocations.c.inventory_id)
        .outerjoin(cell_mappings, cell_mappings.c.uuid == inventories.c.cell_uuid)
    )
    .where(_M.batch_id.in_(dialect.uuids_parameter("batches")), _M.deleted == sa.false(), _M.server_uuid.is_(None))
    .order_by(_M.batch_id, _M.launch_index)
)


def read(tx: ApiTransaction, batch_id: str, project_id: str | None) -> Hold | None:
    """A hold of this project; None: any. Returns None if there is none."""
    holds_read = _read(tx, sa.select(holds).where(_H.batch_id == batch_id), project_id)
    return holds_read[0] if holds_read else None


def list_all(tx: ApiTransaction, project_id: str | None) -> list[Hold]:
    """The holds of this project; None: of all, the oldest first."""
    return _read(tx, sa.select(holds).order_by(_H.created_at, _H.batch_id), project_id)


def _read(tx: ApiTransaction, query: sa.Select[Any], project_id: str | None) -> list[Hold]:
    rows = tx.execute(query if project_id is None else query.where(_H.project_id == project_id)).all()
    servers: defaultdict[str, list[HeldServer]] = defaultdict(list)
    ids = [row.batch_id for row in rows]
    for page in dialect.split_pages(ids):
        for server_row in tx.execute(_SERVERS, {"batches": page}):
            servers[server_row.batch_id].append(_server_from_row(server_row))
    return convert_readable(rows, lambda row: _hold_from_row(row, servers[row.batch_id]), holds)


def _hold_from_row(row: sa.Row[Any], servers: Sequence[HeldServer]) -> Hold:
    return Hold(
        id=row.batch_id,
        project_id=row.project_id,
        user_id=row.user_id,
        created_at=row.created_at,
        expires_at=row.expires_at,
        servers=tuple(servers),
    )


def _server_from_row(row: Any) -> HeldServer:
    return HeldServer(
        uuid=row.instance_uuid,
        name=row.name,
        held=row.request_state == HELD,
        fault=row.fault,
        cell=row.cell,
        host=row.host,
        node=row.node,
    )


def without_hold(tx: ApiTransaction, uuids: Sequence[str]) -> set[str]:
    """Those of these requests that are held without a hold: nobody would ever queue them. At most ``dialect.IN_LIST_SIZE``."""
    return set(tx.execute(_STRAY, {"uuids": list(uuids)}).scalars())


_STRAYS = (_R.state == HELD, ~sa.exists().where(_H.batch_id == _R.batch_id))
_STRAY = sa.select(_R.instance_uuid).where(_R.instance_uuid.in_(dialect.uuids_parameter()), *_STRAYS)
_QUEUE_STRAY = (
    sa.update(build_requests)
    .where(_R.instance_uuid == sa.bindparam("uuid"), *_STRAYS)
    .values(state="queued", lease_until=0.0, deadline=_R.created_at)
)


def queue_strays(tx: ApiTransaction, uuids: Sequence[str]) -> int:
    """Queue requests that are held without a hold, past their deadline: their servers end as ERROR in cell0. Returns how many."""
    return sum(tx.execute(_QUEUE_STRAY, {"uuid": uuid}).rowcount for uuid in sorted(uuids))
