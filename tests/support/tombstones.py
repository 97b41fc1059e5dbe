"""Servers that were deleted some time ago, as their rows are left in a cell and in the API database."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import sqlalchemy as sa

from db.api.rows import spec_fields
from db.api.rows import tables as api
from db.cell import tables as cell
from db.sql.connection import ApiTransaction, Connection
from db.sql.engine import Database
from objects import stored
from objects.spec import RequestSpec
from tests.support import fleet

SEALED = "what a tenant gave in confidence"


def leave(api_database: Database, cell_database: Database, cell_uuid: str, count: int, when: float) -> list[str]:
    """One batch of ``count`` servers of this cell, deleted at ``when``; their uuids."""
    spec, uuids = fleet.spec(batch_id=str(uuid.uuid4())), sorted(str(uuid.uuid4()) for _ in range(count))
    cell_database.write(_in_cell, spec, uuids, when)
    api_database.write(_above, spec, uuids, cell_uuid, when)
    return uuids


def left(database: Database) -> dict[str, int]:
    """Rows by table, where there are any."""
    metadata = api.metadata if database.read(_has, "instance_mappings") else cell.metadata
    counts = {table.name: database.read(_count, table) for table in metadata.sorted_tables}
    return {name: count for name, count in counts.items() if count}


def _in_cell(tx: Connection, spec: RequestSpec, uuids: Sequence[str], when: float) -> None:
    row = {"state": "deleted", "fence": 1, "created_at": when - 60.0, "updated_at": when, "terminated_at": when}
    tx.execute(sa.insert(cell.instances), [row | {"uuid": uuid, "batch_id": spec.batch_id} for uuid in uuids])
    build = {"spec": stored.dump_value(spec), "alternates": "[]", "max_attempts": 3, "history": "[]", "deadline": when}
    tx.execute(sa.insert(cell.builds), [build | {"instance_uuid": uuid} for uuid in uuids])
    action = {"action": "create", "started_at": when - 60.0}
    tx.execute(sa.insert(cell.instance_actions), [action | {"instance_uuid": uuid} for uuid in uuids])


def _above(tx: ApiTransaction, spec: RequestSpec, uuids: Sequence[str], cell_uuid: str, when: float) -> None:
    tx.execute(
        sa.insert(api.request_specs).values(
            batch_id=spec.batch_id, spec=stored.dump_value(spec), created_at=when - 60.0, **spec_fields.columns_of(spec)
        )
    )
    spec_fields.label_batches(tx, {spec.batch_id: spec})
    tx.execute(sa.insert(api.request_secrets).values(batch_id=spec.batch_id, sealed=SEALED, created_at=when - 60.0))
    row = {
        "batch_id": spec.batch_id,
        "cell_uuid": cell_uuid,
        "deleted": True,
        "state": "deleted",
        "project_id": spec.project_id,
        "user_id": "u",
        "name": "web",
        "created_at": when - 60.0,
        "updated_at": when,
        "terminated_at": when,
    }
    tx.execute(sa.insert(api.instance_mappings), [row | {"instance_uuid": uuid} for uuid in uuids])


def _has(tx: Connection, table: str) -> bool:
    return sa.inspect(tx).has_table(table)


def _count(tx: Connection, table: sa.Table) -> int:
    return int(tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
