"""The servers on some hosts, and which of them could be migrated now, as accept would judge (``operation_accept.py``)."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from db.api.claims import displaced
from db.api.claims.displaced import ClaimedBody, DisplacedServers
from db.api.operations import accepting, operations
from db.api.operations.operations import Body
from db.api.rows.tables import all_or_nothing
from db.sql import dialect
from db.sql.connection import ApiTransaction
from objects.base import Object
from objects.operation import Operation, OperationKind, allows_operation
from objects.spec import RequestSpec
from objects.task import TaskState

_OPEN_BATCHES = sa.select(all_or_nothing.c.batch_id).where(all_or_nothing.c.batch_id.in_(dialect.uuids_parameter("batches")))


class MovableServers(Object, frozen=True, kw_only=True):
    """``claims``: of all bodies on the hosts. ``specs``: by body, the request of what can be moved. ``live``: bodies that can be
    migrated live. ``kept``: by body, why it cannot be moved. A body that is in neither is gone meanwhile.
    """

    claims: DisplacedServers
    specs: dict[str, RequestSpec]
    hosts: dict[str, tuple[str, str]]
    live: frozenset[str]
    kept: dict[str, str]


def read(tx: ApiTransaction, inventory_ids: Collection[int], limit: int) -> MovableServers:
    """Raises TooCostly for more than ``limit`` servers."""
    claims = displaced.read(tx, inventory_ids, limit)
    bodies = operations.bodies_by_uuid(tx, [claimed.uuid for claimed in claims.bodies])
    opened = operations.open_for(tx, {body.server.uuid for body in bodies.values()})
    batches = sorted({body.server.batch_id for body in bodies.values()})
    unfinished: set[str] = set()
    for page in dialect.split_pages(batches):
        unfinished |= set(tx.execute(_OPEN_BATCHES, {"batches": page}).scalars())
    specs: dict[str, RequestSpec] = {}
    hosts: dict[str, tuple[str, str]] = {}
    live: set[str] = set()
    reason_by_body: dict[str, str] = {}
    for claim in claims.bodies:
        body, spec = bodies.get(claim.uuid), claims.specs[claim.batch_id]
        if body is None:
            continue
        if reason := _reason_to_stay(claim, body, spec, opened.get(body.server.uuid), unfinished):
            reason_by_body[claim.uuid] = reason
            continue
        specs[claim.uuid] = accepting.current_spec(spec, body.server)
        hosts[claim.uuid] = body.server.host or "", body.server.cell_uuid or ""
        if allows_operation(OperationKind.LIVE_MIGRATE, body.server.power):
            live.add(claim.uuid)
    return MovableServers(claims=claims, specs=specs, hosts=hosts, live=frozenset(live), kept=reason_by_body)


def _reason_to_stay(
    claim: ClaimedBody, body: Body, spec: RequestSpec, opened: Operation | None, unfinished: Collection[str]
) -> str:
    """Why this body is not moved now; empty if it can be."""
    server = body.server
    if opened is not None:
        return "an operation is open"
    if server.deleted or body.hidden or server.state != "active" or server.host is None or server.cell_uuid is None:
        return "not active"
    if server.locked_by is not None:
        return "locked"
    if claim.batch_id in unfinished:
        return "its all-or-nothing request is not complete"
    if spec.force_hosts or spec.force_nodes:
        return "an administrator named its host"
    if server.task_state is TaskState.FAILED:
        return "its last task failed"
    if not allows_operation(OperationKind.MIGRATE, server.power):
        return f"power is {server.power}"
    return ""
