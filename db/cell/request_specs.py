"""The request specs that a cell's builds carry."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from db.cell.tables import builds, instances
from db.sql import dialect
from db.sql.connection import CellTransaction

_SPECS = (
    sa.select(instances.c.batch_id, builds.c.spec)
    .join(builds, builds.c.instance_uuid == instances.c.uuid)
    .where(instances.c.uuid.in_(dialect.uuids()), instances.c.batch_id.is_not(None))
)


def of_rows(tx: CellTransaction, uuids: Iterable[str]) -> dict[str, str]:
    """The stored specs of the batches that these instances are of, at most a page of them."""
    return {row.batch_id: row.spec for row in tx.execute(_SPECS, {"uuids": sorted(uuids)})}
