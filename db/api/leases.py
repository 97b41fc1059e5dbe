"""Who drives a queued request: leases, and the fences that come with them.

A lease only decides when to try; every later write is conditional on the fence, never on the clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from db import secrets
from db.api import incarnation
from db.api.incarnation import Known
from db.api.tables import build_requests, instance_mappings, request_specs
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from objects import stored
from objects.base import Object
from objects.context import request_of
from objects.flavor import Flavor
from objects.spec import RequestSpec


class LeasedRequest(Object, frozen=True, kw_only=True):
    """One build request under the lease of its reader. Times in seconds since the epoch."""

    instance_uuid: str
    fence: int
    name: str
    launch_index: int
    deadline: float
    created_at: float


class LeasedBatch(Object, frozen=True, kw_only=True):
    """The requests of one batch that were leased together. ``sealed``: the batch's secrets, where it has some and they are kept.

    ``unreadable``: why the spec that is stored cannot be used, if it cannot. ``spec`` is then a stand-in that names the batch only.
    Nothing may be built of it: such requests end at their deadline.
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
"""Seconds that a lease may end beyond twice its length: conductors may be configured differently."""

# Nobody writes a lease that long: whoever wrote it had another clock, or the database's clock was set back.
_FREE = sa.or_(build_requests.c.lease_until <= sa.bindparam("now"), build_requests.c.lease_until > sa.bindparam("furthest"))
_WAITING = (
    sa.select(build_requests.c.batch_id)
    .where(_FREE, sa.or_(build_requests.c.lease_until > 0.0, build_requests.c.created_at <= sa.bindparam("before")))
    .group_by(build_requests.c.batch_id)
    .order_by(sa.func.max(build_requests.c.priority).desc(), sa.func.min(build_requests.c.created_at))
    .limit(sa.bindparam("limit"))
)
# MariaDB must not scan: it would skip everything that anybody has locked, and come back empty.
_LEASABLE = by_index(
    by_index(
        sa.select(build_requests, instance_mappings.c.name, instance_mappings.c.launch_index)
        .join(instance_mappings, instance_mappings.c.instance_uuid == build_requests.c.instance_uuid)
        .where(build_requests.c.batch_id.in_(dialect.uuids("batches")), _FREE)
        .order_by(build_requests.c.batch_id, instance_mappings.c.launch_index)
        .with_for_update(of=build_requests, skip_locked=True),
        build_requests,
        "ix_build_requests_batch_id",
    ),
    instance_mappings,
)
_BATCHES = by_index(
    sa.select(request_specs.c.batch_id, request_specs.c.spec, secrets.SEALED_OF_SPEC)
    .where(request_specs.c.batch_id.in_(dialect.uuids("batches")), ~incarnation.CLOSED)
    .order_by(request_specs.c.batch_id)
    .with_for_update(skip_locked=True),
    request_specs,
)
_SPECLESS = (
    sa.select(build_requests, instance_mappings.c.name, instance_mappings.c.launch_index)
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
_OF_UUIDS = build_requests.c.instance_uuid.in_(dialect.uuids())
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
_RENEW = by_index(
    sa.update(build_requests)
    .where(_OF_UUIDS, build_requests.c.fence == sa.bindparam("held"))
    .values(lease_until=sa.bindparam("until")),
    build_requests,
)


def furthest(now: float, seconds: float) -> float:
    """When a lease ends at the latest, if it was written by this clock. Leases of no length say nothing of how long others' are."""
    return now + 2 * (seconds or ANY_LENGTH_S) + LEASE_SLACK_S


def waiting(tx: ApiTransaction, now: float, limit: int, age: float = 0.0, seconds: float = ANY_LENGTH_S) -> list[str]:
    """Batches with requests that nobody drives, the most urgent and oldest first. ``now``: by this database's clock.

    ``seconds``: how long leases are; one that ends much later counts as over. Requests accepted in the last ``age`` seconds that
    nobody has begun with are left out: somebody is about to, unless a doorbell was lost.
    """
    values = {"now": now, "furthest": furthest(now, seconds), "limit": limit, "before": now - age}
    return list(tx.execute(_WAITING, values).scalars())


def lease(
    tx: ApiTransaction, owner: str, batch_ids: Sequence[str], now: float, seconds: float, known: Known | None = None
) -> list[LeasedBatch]:
    """Take what is queued, or was left by a driver whose lease ran out, under a new fence for each request.

    ``now``: by this database's clock, as is every lease. One that ends much later than a lease can is over too. ``known``: the
    incarnation that the caller has compared with the cells; nothing is leased in another one (``db/api/incarnation.py``).

    Rows another conductor is taking at this moment are skipped where the server can do so, and found taken elsewhere.
    """
    # a batch is leased by one conductor, whole
    specs = {row.batch_id: row for row in tx.execute(_BATCHES, {"batches": list(batch_ids)} | _of(known))}
    rows = tx.execute(_LEASABLE, {"batches": list(specs), "now": now, "furthest": furthest(now, seconds)}).all() if specs else []
    if not rows:
        return []
    for chunk in chunks([r.instance_uuid for r in rows]):
        tx.execute(_LEASE, {"uuids": chunk, "new_owner": owner, "until": now + seconds})
    return [_batch(batch, members, specs[batch].spec, specs[batch].sealed) for batch, members in _leased(rows).items()]


def lease_without_spec(
    tx: ApiTransaction, owner: str, now: float, seconds: float, limit: int, known: Known | None = None
) -> list[LeasedBatch]:
    """The same for requests past their deadline whose spec is gone, at most ``limit`` of them: ``lease`` finds none of these."""
    rows = tx.execute(_SPECLESS, {"now": now, "furthest": furthest(now, seconds), "limit": limit} | _of(known)).all()
    for chunk in chunks([r.instance_uuid for r in rows]):
        tx.execute(_LEASE, {"uuids": chunk, "new_owner": owner, "until": now + seconds})
    return [_batch(batch, members, None, None) for batch, members in _leased(rows).items()]


def _leased(rows: Sequence[sa.Row[Any]]) -> dict[str, list[LeasedRequest]]:
    """By batch, under their new fences."""
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
            )
        )
    return requests


def _batch(batch_id: str, requests: Sequence[LeasedRequest], text: str | None, sealed: str | None) -> LeasedBatch:
    unreadable = None
    try:
        spec = stored.load(text, RequestSpec) if text is not None else None
    except stored.UNREADABLE as error:
        spec, unreadable = None, f"the stored request cannot be decoded: {error}"
    if spec is None:
        spec, unreadable = _stand_in(batch_id), unreadable or "the stored request is gone"
    return LeasedBatch(batch_id=batch_id, spec=spec, requests=tuple(requests), sealed=sealed, unreadable=unreadable)


def _stand_in(batch_id: str) -> RequestSpec:
    """What stands for a spec that cannot be read."""
    nothing = Flavor(flavor_id="", name="", vcpus=0, memory_mb=0)
    return RequestSpec(batch_id=batch_id, request_id=request_of(batch_id) or "", project_id="", user_id="", name="", flavor=nothing)


def _of(known: Known | None) -> dict[str, str | int]:
    return {"incarnation": known.uuid, "mark": known.mark} if known else {"incarnation": "", "mark": 0}


def refence(tx: ApiTransaction, fences: Mapping[str, int]) -> dict[str, int]:
    """Change one's mind about host or cell: a new fence for each request still held under the fence given.

    Returns the new fences; a uuid that is missing was lost to a delete or to a successor.
    """
    held: list[str] = []
    for chunk in chunks(sorted(fences)):
        rows = tx.execute(_HELD, {"uuids": chunk}).all()
        held += [r.instance_uuid for r in rows if r.fence == fences[r.instance_uuid]]
    for chunk in chunks(held):
        tx.execute(_REFENCE, {"uuids": chunk})
    return {uuid: fences[uuid] + 1 for uuid in held}


def renew(tx: ApiTransaction, fences: Mapping[str, int], until: float) -> None:
    """Extend the lease of requests still held under the fence given. Losing it does no harm, so nothing is returned."""
    for fence, uuids in by_fence(fences).items():
        for chunk in chunks(uuids):
            tx.execute(_RENEW, {"uuids": chunk, "held": fence, "until": until})


def by_fence(fences: Mapping[str, int]) -> dict[int, list[str]]:
    """Uuids grouped by their fence; a batch leased at once has one."""
    groups: dict[int, list[str]] = defaultdict(list)
    for uuid in sorted(fences):
        groups[fences[uuid]].append(uuid)
    return groups


def chunks(uuids: Sequence[str]) -> Iterable[list[str]]:
    """Pieces no longer than an IN list may be."""
    for start in range(0, len(uuids), dialect.IN_LIST):
        yield list(uuids[start : start + dialect.IN_LIST])
