"""Request specs that a cell's builds carry, put back where the API database has lost them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa
from sqlalchemy import Connection

from db import dialect, spec_fields
from db.tables.api import request_specs
from db.tables.cell import builds, instances
from objects import stored
from objects.spec import RequestSpec

_SPECS = (
    sa.select(instances.c.batch_id, builds.c.spec)
    .join(builds, builds.c.instance_uuid == instances.c.uuid)
    .where(instances.c.uuid.in_(dialect.uuids()), instances.c.batch_id.is_not(None))
)


def of_rows(tx: Connection, uuids: Iterable[str]) -> dict[str, str]:
    """In a cell: the stored specs of the batches that these instances are of, at most a page of them."""
    return {row.batch_id: row.spec for row in tx.execute(_SPECS, {"uuids": sorted(uuids)})}


def put_back(tx: Connection, specs: Mapping[str, str], now: float) -> int:
    """In the API database: write those that are missing; return how many."""
    decoded = {batch: stored.load_or_none(text, RequestSpec) for batch, text in sorted(specs.items())}
    rows = [
        {"batch_id": batch, "spec": specs[batch], "created_at": now, **spec_fields.columns(spec)} for batch, spec in decoded.items()
    ]
    written = dialect.insert_new(tx, request_specs, rows)
    spec_fields.label(tx, decoded)
    return written
