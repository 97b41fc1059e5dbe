"""All-or-nothing batches: open until each member is ACTIVE or deleted, or one is in ERROR. Others have no row here.

A row goes when there is nothing left to do: the batch is settled, or rolled back. What is decided here follows from the members'
summaries, of which all that is used is final as long as the row is open (``docs/protocol.md``); who decides is decided by the row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from db.api.tables import all_or_nothing, instance_mappings
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from objects.base import Object


class AllOrNothingBatch(Object, frozen=True, kw_only=True):
    """``fault`` None: open; else it has failed, and this is what its other members are told. Times in seconds since the epoch."""

    batch_id: str
    created_at: float
    fault: str | None = None
    failed_at: float | None = None


class Member(Object, frozen=True, kw_only=True):
    """A server of a batch that is not deleted, as its summary has it. ``cell_uuid`` None: it is still queued."""

    uuid: str
    name: str
    state: str
    cell_uuid: str | None
    updated_at: float
    fault: str | None


_C = all_or_nothing.c
_M = instance_mappings.c
_AFTER = sa.select(all_or_nothing).where(_C.batch_id > sa.bindparam("after")).order_by(_C.batch_id).limit(sa.bindparam("limit"))
_OF = sa.select(all_or_nothing).where(_C.batch_id.in_(dialect.uuids("batches"))).order_by(_C.batch_id)
_FAULT = sa.select(_C.fault).where(_C.batch_id == sa.bindparam("batch"))
# MariaDB might rather go by the states, and read every server that is ACTIVE.
_MEMBERS = by_index(
    sa.select(_M.batch_id, _M.instance_uuid, _M.name, _M.state, _M.cell_uuid, _M.updated_at, _M.fault)
    .where(_M.batch_id.in_(dialect.uuids("batches")), _M.deleted == sa.false(), _M.state.in_(dialect.uuids("states")))
    .order_by(_M.batch_id, _M.launch_index),
    instance_mappings,
    "ix_instance_mappings_batch_id",
)
_SETTLE = sa.delete(all_or_nothing).where(_C.batch_id == sa.bindparam("batch"), _C.fault.is_(None))
_FAIL = (
    sa.update(all_or_nothing)
    .where(_C.batch_id == sa.bindparam("batch"), _C.fault.is_(None))
    .values(fault=sa.bindparam("sentence"), failed_at=sa.bindparam("now"))
)
_FINISH = sa.delete(all_or_nothing).where(_C.batch_id == sa.bindparam("batch"), _C.fault.is_not(None))


def begin(tx: ApiTransaction, batch_id: str, now: float) -> None:
    """In the transaction that accepts the batch."""
    tx.execute(sa.insert(all_or_nothing), {"batch_id": batch_id, "created_at": now})


def after(tx: ApiTransaction, limit: int, key: str = "") -> list[AllOrNothingBatch]:
    """All that have a row, by id from ``key`` on."""
    return [AllOrNothingBatch(**row._mapping) for row in tx.execute(_AFTER, {"after": key, "limit": limit})]


def of(tx: ApiTransaction, batch_ids: Sequence[str]) -> list[AllOrNothingBatch]:
    """Those of these batches that have a row; IN_LIST of them at most."""
    return [AllOrNothingBatch(**row._mapping) for row in tx.execute(_OF, {"batches": list(batch_ids)})]


def fault_of(tx: ApiTransaction, batch_id: str) -> str | None:
    """What members of this batch are told that are not built any more; None while it may be built."""
    return tx.execute(_FAULT, {"batch": batch_id}).scalar_one_or_none()


def members(tx: ApiTransaction, batch_ids: Sequence[str], states: Iterable[str]) -> dict[str, list[Member]]:
    """Servers that are not deleted and whose summaries are in these states, by batch, in their order; IN_LIST batches at most.

    A batch without any is left out.
    """
    found: dict[str, list[Member]] = defaultdict(list)
    if batch_ids:
        for r in tx.execute(_MEMBERS, {"batches": list(batch_ids), "states": list(states)}):
            found[r.batch_id].append(
                Member(
                    uuid=r.instance_uuid, name=r.name, state=r.state, cell_uuid=r.cell_uuid, updated_at=r.updated_at, fault=r.fault
                )
            )
    return dict(found)


def decide(tx: ApiTransaction, settled: Iterable[str], failed: Mapping[str, str], now: float) -> list[str]:
    """Settle and fail those of these batches that are still open; returns the ids of those that failed by this."""
    won: list[str] = []
    for batch_id in sorted({*settled, *failed}):  # in one order, as others may be at the same ones
        if batch_id not in failed:
            tx.execute(_SETTLE, {"batch": batch_id})
        elif tx.execute(_FAIL, {"batch": batch_id, "sentence": failed[batch_id], "now": now}).rowcount:
            won.append(batch_id)
    return won


def finish(tx: ApiTransaction, batch_ids: Iterable[str]) -> None:
    """Nothing of these failed batches is left to be rolled back."""
    for batch_id in sorted(batch_ids):
        tx.execute(_FINISH, {"batch": batch_id})
