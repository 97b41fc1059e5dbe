"""The queue as the API database has it, for an audit: build requests, and secrets that are kept for requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from db.api.rows.tables import build_requests, instance_mappings, request_secrets
from db.audit.pages import execute_in_pages, keys_of
from db.sql import dialect
from db.sql.connection import ApiTransaction
from objects.base import Object


class QueuedRequest(Object, frozen=True, kw_only=True):
    """A build request; ``mapped``: the mapping that was accepted with it is there. Times in seconds since the epoch."""

    uuid: str
    state: str
    fence: int
    owner: str | None
    lease_until: float
    deadline: float
    created_at: float
    mapped: bool


requests_after = keys_of(build_requests.c.instance_uuid)

_REQUESTS = (
    sa.select(build_requests, instance_mappings.c.instance_uuid.label("mapping"))
    .select_from(build_requests.outerjoin(instance_mappings, instance_mappings.c.instance_uuid == build_requests.c.instance_uuid))
    .where(build_requests.c.instance_uuid.in_(dialect.uuids_parameter()))
    .order_by(build_requests.c.instance_uuid)
)


def list_requests(tx: ApiTransaction, uuids: Iterable[str]) -> list[QueuedRequest]:
    return [
        QueuedRequest(
            uuid=r.instance_uuid,
            state=r.state,
            fence=r.fence,
            owner=r.owner,
            lease_until=r.lease_until,
            deadline=r.deadline,
            created_at=r.created_at,
            mapped=r.mapping is not None,
        )
        for r in execute_in_pages(tx, _REQUESTS, uuids)
    ]


_S = request_secrets.c
_KEPT = sa.select(_S.batch_id).where(~sa.exists().where(build_requests.c.batch_id == _S.batch_id)).order_by(_S.batch_id)


def kept_secrets_after(tx: ApiTransaction, after: str, limit: int, before: float) -> list[str]:
    """Batches of which nothing is queued, whose secrets have been kept since before ``before``."""
    return list(tx.execute(_KEPT.where(_S.batch_id > after, _S.created_at < before).limit(limit)).scalars())


def kept_secrets(tx: ApiTransaction, batches: Sequence[str]) -> list[str]:
    """Those of these batches of which nothing is queued, and whose secrets are kept."""
    return [row.batch_id for row in execute_in_pages(tx, _KEPT.where(_S.batch_id.in_(dialect.uuids_parameter())), batches)]
