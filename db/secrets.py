"""Sealed secrets of batches: beside the queue in the API database, beside the builds in a cell's. Nobody here can open them.

Rows are erased once what they were for is done. In the API database the hand-over of all requests of a batch does it, otherwise a
sweep. That is final by itself: a batch never gets another request. In a cell an instance of the batch may be about to be staged, so
there the row's lock decides: ``stage`` takes it before it writes an instance, and ``erase_builds`` takes it before it looks for
unfinished ones, with a statement of its own. One DELETE with a condition would not do: PostgreSQL, having waited for the row,
judges the condition by what was committed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import sqlalchemy as sa
from sqlalchemy import Connection

from db.api.rows.tables import build_requests, request_secrets, request_specs
from db.cell.tables import build_secrets, instances
from db.sql import dialect
from db.sql.dialect import Upsert
from objects.base import Object
from objects.instance import State

NOTHING: Mapping[str, str] = MappingProxyType({})
PAGE_SIZE = dialect.IN_LIST_SIZE
"""Batches that ``list_decided`` and ``list_finished`` return at most."""

UNFINISHED = (State.STAGED, State.SCHEDULED, State.BUILDING)
"""States in which an agent may still ask for the secrets. A DELETING instance is not built any more."""


class Kept(Object, frozen=True, kw_only=True):
    """The batch of one instance, and its sealed secrets if they are still there. Of a task: the name that they are sealed under."""

    batch_id: str
    sealed: str | None

    def __repr__(self) -> str:
        return f"Kept({self.batch_id})"


# -- in the API database -----------------------------------------------------------------------------------------------------

_KEEP_REQUESTS = sa.insert(request_secrets)
_OF_REQUEST = sa.select(request_secrets.c.sealed).where(request_secrets.c.batch_id == sa.bindparam("batch"))
SEALED_OF_SPEC = (
    sa.select(request_secrets.c.sealed)
    .where(request_secrets.c.batch_id == request_specs.c.batch_id)
    .scalar_subquery()
    .label("sealed")
)
"""A column for queries of request specs: the batch's secrets if they still exist. It takes no lock and needs none,
because they are written with the spec and erased when no request of the batch is left."""
_NOT_QUEUED = ~sa.exists().where(build_requests.c.batch_id == request_secrets.c.batch_id)
DECIDED = sa.exists(request_secrets.c.batch_id).where(_NOT_QUEUED)
"""SQL condition: ``list_decided`` would return something."""
_DECIDED = sa.select(request_secrets.c.batch_id).where(_NOT_QUEUED).limit(PAGE_SIZE)
_ERASE_REQUESTS = sa.delete(request_secrets).where(request_secrets.c.batch_id.in_(dialect.uuids_parameter("batches")), _NOT_QUEUED)


def keep_requests(tx: Connection, sealed: Mapping[str, str], now: float) -> None:
    """By batch, in the transaction that accepts these."""
    if sealed:
        rows = [{"batch_id": batch_id, "sealed": text, "created_at": now} for batch_id, text in sealed.items()]
        tx.execute(_KEEP_REQUESTS, rows)


def of_request(tx: Connection, batch_id: str) -> str | None:
    """What was kept for a batch; None once erased, or if there was nothing."""
    return tx.execute(_OF_REQUEST, {"batch": batch_id}).scalar_one_or_none()


def list_decided(tx: Connection) -> list[str]:
    """Batches whose secrets are kept although none of their requests is queued any more, a page of them."""
    return list(tx.execute(_DECIDED).scalars())


def erase_requests(tx: Connection, batch_ids: Sequence[str]) -> None:
    """Erase what is kept for those of these batches that have no queued request. That is final."""
    for page in dialect.split_pages(batch_ids):
        tx.execute(_ERASE_REQUESTS, {"batches": page})


# -- in a cell's database ----------------------------------------------------------------------------------------------------

# Update an existing row instead of ignoring it: on PostgreSQL only an update takes its lock.
_KEEP_BUILD = Upsert(build_secrets, key=["batch_id"], replaced=["sealed", "created_at"])
_BATCHES = sa.select(instances.c.uuid, instances.c.batch_id).where(instances.c.uuid.in_(dialect.uuids_parameter()))
_OF_BUILDS = sa.select(build_secrets.c.batch_id, build_secrets.c.sealed).where(
    build_secrets.c.batch_id.in_(dialect.uuids_parameter("batches"))
)
_UNFINISHED = sa.and_(instances.c.batch_id == build_secrets.c.batch_id, instances.c.state.in_(UNFINISHED))
_DONE = ~sa.exists().where(_UNFINISHED)
FINISHED = sa.exists(build_secrets.c.batch_id).where(_DONE)
"""SQL condition: ``list_finished`` would return something."""
_FINISHED = sa.select(build_secrets.c.batch_id).where(_DONE).limit(PAGE_SIZE)
_LOCK = (
    sa.select(build_secrets.c.batch_id)
    .where(build_secrets.c.batch_id.in_(dialect.uuids_parameter("batches")))
    .order_by(build_secrets.c.batch_id)
    .with_for_update(skip_locked=True)  # its holder stages builds of the batch, so the secrets are still needed
)
_STILL_NEEDED = (
    sa.select(instances.c.batch_id)
    .where(instances.c.batch_id.in_(dialect.uuids_parameter("batches")), instances.c.state.in_(UNFINISHED))
    .distinct()
)


def keep_builds(tx: Connection, sealed: Mapping[str, str], now: float) -> None:
    """By batch, at the beginning of the transaction that stages instances of these: the rows' locks keep ``erase_builds`` away.

    They are locked in the order of their ids.
    """
    _KEEP_BUILD(tx, [{"batch_id": batch_id, "sealed": sealed[batch_id], "created_at": now} for batch_id in sorted(sealed)])


def of_builds(tx: Connection, uuids: Iterable[str], known: Mapping[str, str] = NOTHING) -> dict[str, Kept]:
    """What is kept for the batches of these instances, by instance; an instance without a batch is left out.

    ``known``: batches of instances that the caller knows already, by instance.
    """
    uuids_left = sorted(set(uuids))
    batches = {uuid: known[uuid] for uuid in uuids_left if uuid in known}
    uuids_left = [uuid for uuid in uuids_left if uuid not in batches]
    for page in dialect.split_pages(uuids_left):
        batch_rows = tx.execute(_BATCHES, {"uuids": page})
        batches |= {row.uuid: row.batch_id for row in batch_rows if row.batch_id}
    named = sorted(set(batches.values()))
    sealed: dict[str, str] = {}
    for page in dialect.split_pages(named):
        rows = tx.execute(_OF_BUILDS, {"batches": page})
        sealed |= {row.batch_id: row.sealed for row in rows}
    return {uuid: Kept(batch_id=batch, sealed=sealed.get(batch)) for uuid, batch in batches.items()}


def list_finished(tx: Connection) -> list[str]:
    """Batches whose secrets are kept although none of their builds here is unfinished, as far as can be seen without a lock."""
    return list(tx.execute(_FINISHED).scalars())


def erase_builds(tx: Connection, batch_ids: Sequence[str]) -> list[str]:
    """Erase what is kept for those of these batches that still have no unfinished build; returns them."""
    locked = list(tx.execute(_LOCK, {"batches": list(batch_ids)}).scalars())
    if not locked:
        return []
    needed = set(tx.execute(_STILL_NEEDED, {"batches": locked}).scalars())
    erased = [batch for batch in locked if batch not in needed]
    if erased:
        tx.execute(sa.delete(build_secrets).where(build_secrets.c.batch_id.in_(erased)))
    return erased
