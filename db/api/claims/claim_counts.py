"""Counts of the claims that keep operators from changing a host."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from db import selections
from db.api.rows.tables import allocations, instance_mappings
from db.sql import dialect
from db.sql.connection import ApiTransaction

_ON_INVENTORIES = (
    sa.select(allocations.c.inventory_id, sa.func.count())
    .outerjoin(instance_mappings, instance_mappings.c.instance_uuid == allocations.c.instance_uuid)
    .where(
        allocations.c.inventory_id.in_(dialect.uuids_parameter("ids")),
        sa.func.coalesce(instance_mappings.c.deleted, sa.false()) == sa.false(),
    )
    .group_by(allocations.c.inventory_id)
)


def on_inventories(tx: ApiTransaction, ids: Sequence[int]) -> dict[int, int]:
    """The number of claims on each of these inventories that has any. The caller has locked them.

    Claims of bodies that are deleted, whose guests may still be there, do not count.
    """
    counts: dict[int, int] = {}
    for page in dialect.split_pages(ids):
        rows = tx.execute(_ON_INVENTORIES, {"ids": page})
        counts |= {row[0]: row[1] for row in rows}
    return counts


def builds_with_alternate(tx: ApiTransaction, host: str) -> int:
    """The number of builds that may still go to this host without a scheduler."""
    query = (
        sa.select(sa.func.count())
        .select_from(instance_mappings.join(allocations, allocations.c.instance_uuid == instance_mappings.c.instance_uuid))
        .where(
            instance_mappings.c.deleted == sa.false(),
            instance_mappings.c.state == "building",
            selections.on_host(allocations.c.selection, host),
        )
    )
    return int(tx.execute(query).scalar_one())
