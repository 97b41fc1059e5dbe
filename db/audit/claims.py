"""Claims, and what inventories count of them, for an audit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from db.api.claims import claims
from db.api.claims.inventories import UsageChange, usage_of
from db.api.rows.tables import allocations, inventories
from db.audit.pages import execute_in_pages, keys_of
from db.sql import dialect
from db.sql.connection import ApiTransaction
from objects.base import Object


class Orphan(Object, frozen=True, kw_only=True):
    """A claim that nothing stands on."""

    uuid: str
    host: str
    cell_uuid: str
    vcpus: int


class Sum(Object, frozen=True, kw_only=True):
    """What an inventory counts as used, and what its claims come to."""

    id: int
    host: str
    node: str
    cell_uuid: str
    counted: UsageChange
    claimed: UsageChange


claims_after = keys_of(allocations.c.instance_uuid)


def inventories_after(tx: ApiTransaction, after: str, limit: int) -> list[str]:
    """Their ids as text."""
    query = sa.select(inventories.c.id).where(inventories.c.id > int(after or 0)).order_by(inventories.c.id).limit(limit)
    return [str(key) for key in tx.execute(query).scalars()]


_CLAIMED = (
    sa.select(allocations.c.instance_uuid, allocations.c.vcpus, inventories.c.host, inventories.c.cell_uuid)
    .select_from(allocations.outerjoin(inventories, inventories.c.id == allocations.c.inventory_id))
    .where(allocations.c.instance_uuid.in_(dialect.uuids_parameter()))
    .order_by(allocations.c.instance_uuid)
)
_A = allocations.c
_SUMMED = (_A.vcpus, _A.memory_mb, _A.disk_gb)
# No server can sum amounts stored as text. So claims with custom resource classes are read one by one, the others as one sum.
_SUMS = (
    sa.select(
        inventories,
        *(sa.func.coalesce(sa.func.sum(column), 0).label(f"sum_{n}") for n, column in enumerate(_SUMMED)),
        sa.func.count(_A.instance_uuid).label("sum_3"),
        sa.func.max(_A.resources).label("resources"),
    )
    .select_from(inventories.outerjoin(allocations, _A.inventory_id == inventories.c.id))
    .where(inventories.c.id.in_(dialect.uuids_parameter()))
    .group_by(inventories.c.id, sa.case((_A.resources.is_not(None), _A.instance_uuid)))
    .order_by(inventories.c.id)
)


def list_orphans(tx: ApiTransaction, uuids: Sequence[str]) -> list[Orphan]:
    """Claims of these instances that nothing stands on (``claims.list_orphans``)."""
    return [
        Orphan(uuid=row.instance_uuid, host=row.host or "", cell_uuid=row.cell_uuid or "", vcpus=row.vcpus)
        for row in execute_in_pages(tx, _CLAIMED, claims.list_orphans(tx, uuids))
    ]


def sum_claims(tx: ApiTransaction, ids: Iterable[int]) -> list[Sum]:
    """One statement for a page, so that what is counted and what is claimed are of one moment."""
    rows: dict[int, sa.Row[Any]] = {}
    claimed: defaultdict[int, UsageChange] = defaultdict(lambda: UsageChange(0, 0, 0, 0))
    for row in execute_in_pages(tx, _SUMS, ids):
        rows[row.id] = row
        claimed[row.id] = claimed[row.id].add_change(_whole_usage(row.sum_0, row.sum_1, row.sum_2, row.sum_3, row.resources))
    return [
        Sum(
            id=row.id,
            host=row.host,
            node=row.node,
            cell_uuid=row.cell_uuid,
            counted=_whole_usage(row.used_vcpus, row.used_memory_mb, row.used_disk_gb, row.instances, row.used_resources),
            claimed=claimed[row.id],
        )
        for row in rows.values()
    ]


def _whole_usage(vcpus: Any, memory_mb: Any, disk_gb: Any, instances: int, custom: str | None) -> UsageChange:
    """Servers give sums as decimal numbers."""
    return usage_of(int(vcpus), int(memory_mb), int(disk_gb), custom, instances)
