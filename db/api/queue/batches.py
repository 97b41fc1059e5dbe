"""All-or-nothing batches: open until each member is ACTIVE or deleted, or one is in ERROR. Other batches have no row here.

The row is deleted once the batch is settled or rolled back. The decision follows from the members' summaries; the states it uses
are final while the row is open (``docs/protocol.md``). Of several conductors, the one whose write changes the row decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from db.api.rows.tables import all_or_nothing, instance_mappings
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from db.sql.readable import convert_readable, readable_page
from objects.base import Object


class AllOrNothingBatch(Object, frozen=True, kw_only=True):
    """``fault`` None: the batch is open. Otherwise it failed, and this is the fault of its other members.

    Times in seconds since the epoch.
    """

    batch_id: str
    created_at: float
    fault: str | None = None
    failed_at: float | None = None


class Member(Object, frozen=True, kw_only=True):
    """A server of a batch that is not deleted, according to its summary. ``cell_uuid`` None: it is still queued."""

    uuid: str
    name: str
    state: str
    cell_uuid: str | None
    updated_at: float
    fault: str | None


_C = all_or_nothing.c
_M = instance_mappings.c
_AFTER = sa.select(all_or_nothing).where(_C.batch_id > sa.bindparam("after")).order_by(_C.batch_id).limit(sa.bindparam("limit"))
_OF = sa.select(all_or_nothing).where(_C.batch_id.in_(dialect.uuids_parameter("batches"))).order_by(_C.batch_id)
_FAULT = sa.select(_C.fault).where(_C.batch_id == sa.bindparam("batch"))
# Without the hint MariaDB may use the index on the states and read every ACTIVE server.
_MEMBERS = by_index(
    sa.select(_M.batch_id, _M.instance_uuid, _M.name, _M.state, _M.cell_uuid, _M.updated_at, _M.fault)
    .where(
        _M.batch_id.in_(dialect.uuids_parameter("batches")),
        _M.deleted == sa.false(),
        _M.state.in_(dialect.uuids_parameter("states")),
    )
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


def begin_batch(tx: ApiTransaction, batch_id: str, now: float) -> None:
    """Open the batch, in the transaction that accepts it."""
    tx.execute(sa.insert(all_or_nothing), {"batch_id": batch_id, "created_at": now})


def list_after(tx: ApiTransaction, limit: int, key: str = "") -> list[AllOrNothingBatch]:
    """At most ``limit`` batches that have a row, by id, after ``key``."""

    def read(start: str) -> Sequence[sa.Row[Any]]:
        return tx.execute(_AFTER, {"after": start, "limit": limit}).all()

    return readable_page(read, key, _batch_from_row, all_or_nothing, "batch_id")


def list_batches(tx: ApiTransaction, batch_ids: Sequence[str]) -> list[AllOrNothingBatch]:
    """The batches among these that have a row. ``batch_ids``: at most ``dialect.IN_LIST_SIZE``."""
    return convert_readable(tx.execute(_OF, {"batches": list(batch_ids)}), _batch_from_row, all_or_nothing)


def _batch_from_row(row: sa.Row[Any]) -> AllOrNothingBatch:
    return AllOrNothingBatch(**row._mapping)


def fault_of(tx: ApiTransaction, batch_id: str) -> str | None:
    """The fault for members that are no longer built, because the batch failed; None while it may be built."""
    fault = tx.execute(_FAULT, {"batch": batch_id}).scalar_one_or_none()
    return None if fault is None else str(fault)


def members_of(tx: ApiTransaction, batch_ids: Sequence[str], states: Iterable[str]) -> dict[str, list[Member]]:
    """Servers that are not deleted and whose summaries are in these states, by batch, in launch order.

    ``batch_ids``: at most ``dialect.IN_LIST_SIZE``. A batch without such servers is left out.
    """
    members_by_batch: dict[str, list[Member]] = defaultdict(list)
    if batch_ids:
        for r in tx.execute(_MEMBERS, {"batches": list(batch_ids), "states": list(states)}):
            members_by_batch[r.batch_id].append(
                Member(
                    uuid=r.instance_uuid, name=r.name, state=r.state, cell_uuid=r.cell_uuid, updated_at=r.updated_at, fault=r.fault
                )
            )
    return dict(members_by_batch)


def decide_batches(tx: ApiTransaction, settled: Iterable[str], failed: Mapping[str, str], now: float) -> list[str]:
    """Settle or fail these batches if they are still open; return the ids of those that this call failed."""
    won: list[str] = []
    for batch_id in sorted({*settled, *failed}):  # in one order, because others may decide the same batches
        if batch_id not in failed:
            tx.execute(_SETTLE, {"batch": batch_id})
        elif tx.execute(_FAIL, {"batch": batch_id, "sentence": failed[batch_id], "now": now}).rowcount:
            won.append(batch_id)
    return won


def finish_batches(tx: ApiTransaction, batch_ids: Iterable[str]) -> None:
    """Delete the rows of these failed batches: their roll-back is complete."""
    for batch_id in sorted(batch_ids):
        tx.execute(_FINISH, {"batch": batch_id})
