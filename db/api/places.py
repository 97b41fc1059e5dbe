"""The hosts of servers, according to their claims."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from db.api.tables import allocations, instance_mappings, inventories
from db.sql import dialect
from db.sql.connection import ApiTransaction

_PLACES = (
    sa.select(allocations.c.instance_uuid, inventories.c.host)
    .join_from(allocations, inventories, inventories.c.id == allocations.c.inventory_id)
    .join(instance_mappings, instance_mappings.c.instance_uuid == allocations.c.instance_uuid)
    .where(allocations.c.instance_uuid.in_(dialect.uuids()), instance_mappings.c.project_id == sa.bindparam("project"))
)


def of_servers(tx: ApiTransaction, project_id: str, uuids: Sequence[str]) -> dict[str, str]:
    """The hosts of these servers, by uuid. Servers of other projects and servers without a claim are left out.

    ``uuids``: at most ``dialect.IN_LIST``.
    """
    return {row.instance_uuid: row.host for row in tx.execute(_PLACES, {"uuids": list(uuids), "project": project_id})}
