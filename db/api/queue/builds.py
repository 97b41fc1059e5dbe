"""How requests leave the durable queue. ``accepting.py`` puts them into it, ``leases.py`` says who drives them in between.

``docs/protocol.md`` defines the guards. A hand-over, a burial and a user's delete compete: the one that deletes the build request
wins. So each of them deletes the request first and writes the mapping after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from oslo_db.exception import RetryRequest

from db import outbox, secrets
from db.api.claims import claims
from db.api.operations import steps
from db.api.projects import quotas
from db.api.queue import leases
from db.api.rows.tables import build_requests, client_tokens, instance_mappings
from db.api.servers import addresses, edits
from db.sql.connection import ApiTransaction
from db.sql.dialect import UpdateMany
from db.sql.keyed import KeyedDelete
from db.sql.readable import whole_row
from objects import errors, notification
from objects.base import Object
from objects.cell import CELL0_UUID
from objects.operation import NOBODY, Initiator
from objects.quota import QuotaUsage


class HandOver(Object, frozen=True, kw_only=True):
    """The hand-over of one request to its cell, on the host of its claim."""

    instance_uuid: str
    fence: int
    cell_uuid: str
    host: str
    node: str
    availability_zone: str | None


class Burial(Object, frozen=True, kw_only=True):
    """One request that never got a host, and the reason (``fault``)."""

    instance_uuid: str
    fence: int
    fault: str


Item = TypeVar("Item", HandOver, Burial)


class Deleted(Object, frozen=True, kw_only=True):
    """A delete that won. ``cell_uuid`` None: the request was still queued, and no cell has anything to delete.

    ``bodies``: the bodies of the server that cells have to delete.
    """

    cell_uuid: str | None
    bodies: tuple[str, ...] = ()


# -- leaving the queue -------------------------------------------------------------------------------------------------------

_TAKE = KeyedDelete(
    build_requests.c.instance_uuid,
    where=[build_requests.c.state == "leased", build_requests.c.fence == sa.bindparam("held")],
    returning=[build_requests.c.instance_uuid],
)
_UNDECIDED = sa.and_(
    instance_mappings.c.instance_uuid == sa.bindparam("uuid"),
    instance_mappings.c.cell_uuid.is_(None),
    instance_mappings.c.deleted.is_(sa.false()),
)
_MAPPED = {
    "cell_uuid": "to_cell",
    "fence": "to_fence",
    "host": "to_host",
    "node": "to_node",
    "availability_zone": "to_zone",
    "mapped_at": "now",
    "updated_at": "now",
}
_MAP = UpdateMany(
    sa.update(instance_mappings)
    .where(_UNDECIDED)
    .values({column: sa.bindparam(parameter) for column, parameter in _MAPPED.items()}),
    instance_mappings,
    key=("instance_uuid", "uuid"),
    values=_MAPPED,
    where="t.cell_uuid IS NULL AND t.deleted = false",
)
_BURY = (
    sa.update(instance_mappings)
    .where(_UNDECIDED)
    .values(
        cell_uuid=CELL0_UUID,
        fence=sa.bindparam("to_fence"),
        state="error",
        fault=sa.bindparam("why"),
        mapped_at=sa.bindparam("now"),
        updated_at=sa.bindparam("now"),
    )
)


def hand_over(tx: ApiTransaction, items: Sequence[HandOver], now: float, whole_batches: Sequence[str] = ()) -> list[str]:
    """Map each request that is still leased under the given fence to its cell, and delete the request; return the uuids won.

    A missing uuid was lost to a delete or to another conductor. The caller must leave it alone.

    ``whole_batches``: batches with secrets of which these are all requests. The secrets of those that are all won are erased.
    """
    handed = _hand_over(tx, items, now)
    secrets.erase_requests(tx, whole_batches)
    if outbox.is_kept(tx):
        outbox.put_notices(tx, "api", [notification.of_hand_over(i.instance_uuid, i.fence, i.host, i.node, now) for i in handed])
    return [item.instance_uuid for item in handed]


def _hand_over(tx: ApiTransaction, items: Sequence[HandOver], now: float) -> list[HandOver]:
    handed = _take_requests(tx, items)
    rows = [
        {
            "uuid": item.instance_uuid,
            "to_cell": item.cell_uuid,
            "to_fence": item.fence,
            "to_host": item.host,
            "to_node": item.node,
            "to_zone": item.availability_zone,
            "now": now,
        }
        for item in handed
    ]
    _refuse_decided(_MAP(tx, rows), rows)
    return handed


def hand_over_twins(tx: ApiTransaction, items: Sequence[HandOver], now: float) -> list[str]:
    """``hand_over`` for twins (``objects/operation.py``) whose sources may not run any more; return the twins won.

    Nobody is notified before the servers are their twins. A missing uuid was lost as in ``hand_over``, or its source may still run:
    its request then stays leased.
    """
    held = steps.lock_held(tx, {item.instance_uuid: item.fence for item in items})
    ready = [item for item in items if item.instance_uuid in held]
    if not ready:
        return []
    handed = _hand_over(tx, ready, now)
    if len(handed) != len(ready):
        raise errors.Conflict("a twin's request was lost under its lock")
    steps.handed_over(tx, {held[item.instance_uuid].uuid: item.host for item in ready}, now)
    return [item.instance_uuid for item in handed]


def bury_requests(tx: ApiTransaction, stamp: claims.Stamp, items: Sequence[Burial], now: float) -> list[str]:
    """Hand over to cell0 with the fault, and release the claim in the same transaction; return the uuids won."""
    buried = _take_requests(tx, items)
    rows = [{"uuid": item.instance_uuid, "to_fence": item.fence, "why": item.fault, "now": now} for item in buried]
    _refuse_decided(tx.execute(_BURY, rows).rowcount if rows else 0, rows)
    claims.release_claims(tx, stamp, sorted(item.instance_uuid for item in buried))
    if outbox.is_kept(tx):
        outbox.put_notices(tx, "api", [notification.of_burial(item.instance_uuid, item.fence, item.fault, now) for item in buried])
    return [item.instance_uuid for item in buried]


def _take_requests(tx: ApiTransaction, items: Sequence[Item]) -> list[Item]:
    """Delete the requests that are still leased under the fences of these; returns those of the items."""
    won: set[str] = set()
    for fence, uuids in leases.by_fence({item.instance_uuid: item.fence for item in items}).items():
        won.update(row.instance_uuid for row in _TAKE(tx, uuids, held=fence))
    return [item for item in items if item.instance_uuid in won]


def _refuse_decided(matched: int, rows: Sequence[Mapping[str, Any]]) -> None:
    if matched != len(rows):
        # Invariant S6: a request and a decided mapping never exist together. Roll back instead of overwriting a mapping.
        raise errors.Conflict("an instance mapping was decided while its build request was still queued")


# -- delete ------------------------------------------------------------------------------------------------------------------

_GONE = sa.delete(build_requests).where(build_requests.c.instance_uuid == sa.bindparam("uuid"))
_MARK = (
    sa.update(instance_mappings)
    .where(instance_mappings.c.instance_uuid == sa.bindparam("uuid"), instance_mappings.c.deleted.is_(sa.false()))
    .values(
        deleted=sa.true(),
        updated_at=sa.bindparam("now"),
        deleted_at=sa.bindparam("now"),
        deleted_by=sa.bindparam("request"),
        deleted_by_user=sa.bindparam("user"),
        name_key=sa.null(),
    )
)
_MAPPING = sa.select(
    instance_mappings.c.project_id,
    instance_mappings.c.user_id,
    instance_mappings.c.cell_uuid,
    instance_mappings.c.deleted,
    instance_mappings.c.vcpus,
    instance_mappings.c.memory_mb,
    instance_mappings.c.server_uuid,
    instance_mappings.c.last_number,
    instance_mappings.c.locked_by,
    instance_mappings.c.state,
).where(instance_mappings.c.instance_uuid == sa.bindparam("uuid"))


def delete(
    tx: ApiTransaction,
    stamp: claims.Stamp,
    uuid: str,
    *,
    project_id: str | None,
    now: float,
    initiator: Initiator = NOBODY,
    ignores_lock: bool = True,
    reclaims: bool = True,
    undecided_only: bool = False,
) -> Deleted | None:
    """Delete the build request, or mark the mapping so that a sweep carries the delete into the cell; release the server's quota.

    The mapping is marked only once, so its quota is released only once.

    ``project_id``: the project that the server must belong to; None: any.
    ``initiator``: who asks for the delete.
    ``ignores_lock``: delete the server even if it is locked; else that raises errors.Conflict.
    ``reclaims``: delete also a server that is soft-deleted; else that one stays so.
    ``undecided_only``: delete it only with its build request.
    Returns None if the server is unknown, already deleted or of another project.
    """
    before = tx.execute(_MAPPING, {"uuid": uuid}).one_or_none()
    if before is None or before.server_uuid is not None or project_id not in (None, before.project_id):
        return None
    if before.last_number:
        bodies = steps.delete(tx, stamp, uuid, initiator, now, ignores_lock=ignores_lock, reclaims=reclaims)
        return None if bodies is None else Deleted(cell_uuid=before.cell_uuid, bodies=tuple(bodies))
    if before.deleted:
        return None
    queued = tx.execute(_GONE, {"uuid": uuid}).rowcount
    if undecided_only and not queued:
        return None
    if not tx.execute(_MARK, {"uuid": uuid, "now": now, "request": initiator.request_id, "user": initiator.user_id}).rowcount:
        return None
    marked = whole_row(tx.execute(_MAPPING, {"uuid": uuid}).one(), instance_mappings)  # final: a deleted one keeps these columns
    if marked.last_number:
        raise RetryRequest(LookupError(f"an operation on server {uuid} was just accepted"))
    edits.check_lock(uuid, marked.locked_by, ignored=ignores_lock)
    if marked.vcpus is not None:
        size = QuotaUsage(instances=1, cores=marked.vcpus, ram=marked.memory_mb or 0)
        quotas.release_usage(tx, marked.project_id, {marked.user_id: size})
    if not queued:
        if marked.state == "deleted":  # its cell has ended it before
            addresses.free_addresses(tx, [uuid], now)
        return Deleted(cell_uuid=marked.cell_uuid, bodies=(uuid,))
    claims.release_claims(tx, stamp, [uuid])
    tx.execute(
        sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == uuid).values(state="deleted", terminated_at=now)
    )
    addresses.free_addresses(tx, [uuid], now)
    if outbox.is_kept(tx):
        outbox.put_notices(tx, "api", notification.of_queued_delete(uuid, now))
    return Deleted(cell_uuid=None)


def forget_tokens(tx: ApiTransaction, before: float) -> int:
    """Delete client tokens first used before ``before`` (seconds since the epoch); return how many. They may then be used anew."""
    return tx.execute(sa.delete(client_tokens).where(client_tokens.c.created_at < before)).rowcount
