"""Leases of queued requests, and their fences.

A lease only decides when a conductor may try. Every later write is conditional on the fence, never on the clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from db import secrets
from db.api.rows import incarnation
from db.api.rows.incarnation import Known
from db.api.rows.tables import build_requests, instance_mappings, request_specs
from db.api.servers import addresses
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from objects import stored
from objects.base import Object
from objects.context import request_of
from objects.flavor import Flavor
from objects.hold import HELD
from objects.port import Port
from objects.spec import RequestSpec
from objects.task import Power


class LeasedRequest(Object, frozen=True, kw_only=True):
    """A build request that the caller has leased. Times in seconds since the epoch.

    ``server_uuid``, ``turn``, ``power``: of a twin (``objects/operation.py``), as in its row in the cell. ``ports``: of its server.
    ``held_until``: it was accepted with a hold (``holds.py``), which may be booted by now; None: it was not.
    """

    instance_uuid: str
    fence: int
    name: str
    launch_index: int
    deadline: float
    created_at: float
    server_uuid: str | None = None
    turn: int = 0
    power: Power = Power.ON
    ports: tuple[Port, ...] = ()
    held_until: float | None = None


class LeasedBatch(Object, frozen=True, kw_only=True):
    """The requests of one batch that were leased together.

    ``sealed``: the batch's sealed secrets, if it has any and they are not erased yet.
    ``unreadable``: why the stored spec cannot be used; None: it can. ``spec`` is then a placeholder with the batch's id. Build
    nothing from it: such requests end at their deadline.
    """

    batch_id: str
    spec: RequestSpec
    requests: tuple[LeasedRequest, ...]
    sealed: str | None = None
    unreadable: str | None = None

    def __repr__(self) -> str:
        return f"Batch({self.batch_id}, {len(self.requests)} requests)"


ANY_LENGTH_S = 1e15
LEASE_SLACK_S = 600.0
"""Seconds that a lease may end beyond twice its length, because conductors may be configured differently."""

# A lease that ends after ``furthest_end`` was written by another clock, or the database's clock was set back: treat it as free.
_FREE = sa.and_(
    build_requests.c.state != HELD,
    sa.or_(build_requests.c.lease_until <= sa.bindparam("now"), build_requests.c.lease_until > sa.bindparam("furthest")),
)
WAITS = sa.and_(_FREE, sa.or_(build_requests.c.lease_until > 0.0, build_requests.c.created_at <= sa.bindparam("before")))
"""SQL condition on a request: ``list_waiting`` would return its batch. Its parameters are ``waiting_values``."""
_WAITING = (
    sa.select(build_requests.c.batch_id)
    .where(WAITS)
    .group_by(build_requests.c.batch_id)
    .order_by(sa.func.max(build_requests.c.priority).desc(), sa.func.min(build_requests.c.created_at))
    .limit(sa.bindparam("limit"))
)
_OF_MAPPING = [instance_mappings.c[name] for name in ("name", "launch_index", "server_uuid", "turn", "power")]
# Without the hints MariaDB may scan the tables, skip every row that is locked anywhere in them, and return nothing.
_LEASABLE = by_index(
    by_index(
        sa.select(build_requests, *_OF_MAPPING)
        .join(instance_mappings, instance_mappings.c.instance_uuid == build_requests.c.instance_uuid)
        .where(build_requests.c.batch_id.in_(dialect.uuids_parameter("batches")), _FREE)
        .order_by(build_requests.c.batch_id, instance_mappings.c.launch_index)
        .with_for_update(of=build_requests, skip_locked=True),
        build_requests,
        "ix_build_requests_batch_id",
    ),
    instance_mappings,
)
_BATCHES = by_index(
    sa.select(request_specs.c.batch_id, request_specs.c.spec, secrets.SEALED_OF_SPEC)
    .where(request_specs.c.batch_id.in_(dialect.uuids_parameter("batches")), ~incarnation.CLOSED)
    .order_by(request_specs.c.batch_id)
    .with_for_update(skip_locked=True),
    request_specs,
)
_SPECLESS = (
    sa.select(build_requests, *_OF_MAPPING)
    .join(instance_mappings, instance_mappings.c.instance_uuid == build_requests.c.instance_uuid)
    .where(
        _FREE,
        build_requests.c.deadline < sa.bindparam("now"),
        ~incarnation.CLOSED,
        sa.not_(sa.exists().where(request_specs.c.batch_id == build_requests.c.batch_id)),
    )
    .order_by(build_requests.c.instance_uuid)
    .limit(sa.bindparam("limit"))
    .with_for_update(of=build_requests, skip_locked=True)
)
_OF_UUIDS = build_requests.c.instance_uuid.in_(dialect.uuids_parameter())
_LEASE = by_index(
    sa.update(build_requests)
    .where(_OF_UUIDS)
    .values(
        state="leased",
        owner=sa.bindparam("new_owner"),
        lease_until=sa.bindparam("until"),
        fence=build_requests.c.fence + 1,
    ),
    build_requests,
)
_HELD = by_index(
    sa.select(build_requests.c.instance_uuid, build_requests.c.fence)
    .where(_OF_UUIDS, build_requests.c.state == "leased")
    .order_by(build_requests.c.instance_uuid)
    .with_for_update(),
    build_requests,
)
_REFENCE = by_index(sa.update(build_requests).where(_OF_UUIDS).values(fence=build_requests.c.fence + 1), build_requests)
_UNLOCKED = by_index(
    sa.select(build_requests.c.instance_uuid)
    .where(_OF_UUIDS, build_requests.c.fence == sa.bindparam("held"))
    .order_by(build_requests.c.instance_uuid)
    .with_for_update(skip_locked=True),
    build_requests,
)
_RENEW = by_index(
    sa.update(build_requests)
    .where(_OF_UUIDS, build_requests.c.fence == sa.bindparam("held"))
    .values(lease_until=sa.bindparam("until")),
    build_requests,
)


def furthest_end(now: float, seconds: float) -> float:
    """The latest end of a valid lease. ``seconds``: the length of leases; 0: unknown, then any end within ANY_LENGTH_S is valid."""
    return now + 2 * (seconds or ANY_LENGTH_S) + LEASE_SLACK_S


def list_waiting(tx: ApiTransaction, now: float, limit: int, age: float = 0.0, seconds: float = ANY_LENGTH_S) -> list[str]:
    """Batches with requests that nobody drives, highest priority and then oldest first. ``now``: by this database's clock.

    ``seconds``: the length of leases; a lease that ends much later counts as expired.
    ``age``: never-leased requests accepted in the last ``age`` seconds are left out, because a conductor was just notified of them.
    """
    return list(tx.execute(_WAITING, waiting_values(now, age, seconds) | {"limit": limit}).scalars())


def waiting_values(now: float, age: float, seconds: float) -> dict[str, float]:
    """The parameters of ``WAITS``; see ``list_waiting``."""
    return {"now": now, "furthest": furthest_end(now, seconds), "before": now - age}


def lease_batches(
    tx: ApiTransaction, owner: str, batch_ids: Sequence[str], now: float, seconds: float, known: Known | None = None
) -> list[LeasedBatch]:
    """Lease queued requests and requests with an expired lease, each under a new fence.

    ``now``: by this database's clock, like every lease. A lease that ends later than any valid lease counts as expired.
    ``known``: the incarnation that the caller compared with the cells; nothing is leased in another one
    (``db/api/rows/incarnation.py``).

    Rows that another conductor is leasing are skipped on PostgreSQL and MariaDB. SQLite has one writer at a time.
    """
    # The lock of the spec's row makes one conductor lease the whole batch.
    specs = {row.batch_id: row for row in tx.execute(_BATCHES, {"batches": list(batch_ids)} | incarnation.parameters_of(known))}
    rows = (
        tx.execute(_LEASABLE, {"batches": list(specs), "now": now, "furthest": furthest_end(now, seconds)}).all() if specs else []
    )
    if not rows:
        return []
    for chunk in dialect.split_pages([r.instance_uuid for r in rows]):
        tx.execute(_LEASE, {"uuids": chunk, "new_owner": owner, "until": now + seconds})
    return _with_ports(tx, _batches_from_rows(rows, specs))


def lease_without_spec(
    tx: ApiTransaction, owner: str, now: float, seconds: float, limit: int, known: Known | None = None
) -> list[LeasedBatch]:
    """Lease at most ``limit`` requests past their deadline whose spec is gone: ``lease_batches`` does not find these."""
    rows = tx.execute(
        _SPECLESS, {"now": now, "furthest": furthest_end(now, seconds), "limit": limit} | incarnation.parameters_of(known)
    ).all()
    for chunk in dialect.split_pages([r.instance_uuid for r in rows]):
        tx.execute(_LEASE, {"uuids": chunk, "new_owner": owner, "until": now + seconds})
    return _batches_from_rows(rows, {})


def _with_ports(tx: ApiTransaction, batches: list[LeasedBatch]) -> list[LeasedBatch]:
    """The batches with the interfaces of their servers: one statement for all that may have some, none for the others."""
    networked = [batch for batch in batches if batch.spec.move is not None or addresses.has_ports(batch.spec.properties.networks)]
    if not networked:
        return batches
    ports = addresses.ports_of(tx, [r.server_uuid or r.instance_uuid for batch in networked for r in batch.requests])

    filled: list[LeasedBatch] = []
    for batch in batches:
        requests = tuple(
            msgspec.structs.replace(request, ports=ports.get(request.server_uuid or request.instance_uuid, ()))
            for request in batch.requests
        )
        filled.append(msgspec.structs.replace(batch, requests=requests) if batch in networked else batch)
    return filled


def _batches_from_rows(rows: Sequence[sa.Row[Any]], specs: Mapping[str, sa.Row[Any]]) -> list[LeasedBatch]:
    """The leased requests by batch, with their new fences. ``specs``: rows of ``_BATCHES`` by batch."""
    requests: dict[str, list[LeasedRequest]] = defaultdict(list)
    for r in rows:
        requests[r.batch_id].append(
            LeasedRequest(
                instance_uuid=r.instance_uuid,
                fence=r.fence + 1,
                name=r.name,
                launch_index=r.launch_index,
                deadline=r.deadline,
                created_at=r.created_at,
                server_uuid=r.server_uuid,
                turn=r.turn,
                power=Power(r.power) if r.server_uuid is not None else Power.ON,
                held_until=r.held_until,
            )
        )
    batches: list[LeasedBatch] = []
    for batch_id, members in requests.items():
        row = specs.get(batch_id)
        spec, sealed = None, None
        unreadable: str | None = "the stored request is missing"
        if row is not None:
            sealed = row.sealed
            try:
                spec, unreadable = stored.load_text(row.spec, RequestSpec), None
            except stored.UNREADABLE as error:
                unreadable = f"the stored request cannot be decoded: {error}"
        spec = _stand_in(batch_id) if spec is None else spec
        batches.append(LeasedBatch(batch_id=batch_id, spec=spec, requests=tuple(members), sealed=sealed, unreadable=unreadable))
    return batches


def _stand_in(batch_id: str) -> RequestSpec:
    """A placeholder for a spec that cannot be read."""
    nothing = Flavor(flavor_id="", name="", vcpus=0, memory_mb=0)
    return RequestSpec(batch_id=batch_id, request_id=request_of(batch_id) or "", project_id="", user_id="", name="", flavor=nothing)


def refence_requests(tx: ApiTransaction, fences: Mapping[str, int]) -> dict[str, int]:
    """Give each request that is still held under the given fence a new one, before its host or cell is chosen again.

    Returns the new fences. A missing uuid was lost to a delete or to another conductor.
    """
    held: list[str] = []
    for chunk in dialect.split_pages(sorted(fences)):
        rows = tx.execute(_HELD, {"uuids": chunk}).all()
        held += [r.instance_uuid for r in rows if r.fence == fences[r.instance_uuid]]
    for chunk in dialect.split_pages(held):
        tx.execute(_REFENCE, {"uuids": chunk})
    return {uuid: fences[uuid] + 1 for uuid in held}


def renew_leases(tx: ApiTransaction, fences: Mapping[str, int], until: float) -> None:
    """Extend the lease of requests that are still held under the given fence. A lost lease is harmless, so nothing is returned."""
    for fence, uuids in by_fence(fences).items():
        for chunk in dialect.split_pages(uuids):
            tx.execute(_RENEW, {"uuids": chunk, "held": fence, "until": until})


def renew_unlocked(tx: ApiTransaction, fences: Mapping[str, int], until: float) -> None:
    """The same, but for requests that somebody has locked: a claim may hold its requests for long on a busy machine, and must not
    hold up the others. Nobody leases a request that is locked.
    """
    for fence, uuids in by_fence(fences).items():
        for chunk in dialect.split_pages(uuids):
            unlocked = tx.execute(_UNLOCKED, {"uuids": chunk, "held": fence}).scalars().all()
            renew_leases(tx, dict.fromkeys(unlocked, fence), until)


def by_fence(fences: Mapping[str, int]) -> dict[int, list[str]]:
    """Uuids grouped by fence, in order. The requests of a batch that was leased at once usually share one fence."""
    groups: dict[int, list[str]] = defaultdict(list)
    for uuid in sorted(fences):
        groups[fences[uuid]].append(uuid)
    return groups
