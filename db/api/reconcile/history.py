"""The bodies of servers that ran, deleted ones too, in pages: what a record of a deployment's past is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from db.api.rows.tables import instance_mappings, request_specs
from db.api.servers import mappings
from db.sql.connection import ApiTransaction
from objects import stored
from objects.base import Object
from objects.spec import RequestSpec

_M = instance_mappings.c
_COLUMNS = (
    _M.instance_uuid,
    _M.server_uuid,
    _M.turn,
    _M.batch_id,
    _M.cell_uuid,
    _M.project_id,
    _M.deleted,
    _M.created_at,
    _M.mapped_at,
    _M.launched_at,
    _M.terminated_at,
    _M.deleted_at,
    _M.updated_at,
)
_AFTER = (
    sa.select(*_COLUMNS)
    .where(_M.instance_uuid > sa.bindparam("after"))
    .order_by(_M.instance_uuid)  # the primary key: a page reads no further than its last body
    .limit(sa.bindparam("limit"))
)


class PastBody(Object, frozen=True, kw_only=True):
    """A body of a server. Times are seconds since the epoch.

    ``start``: when its cell got it, with its claim; None: it never ran. ``end`` None: it is not deleted.
    """

    uuid: str
    server_uuid: str
    turn: int
    batch_id: str
    cell_uuid: str | None
    project_id: str
    start: float | None
    end: float | None


class HistoryPage(Object, frozen=True, kw_only=True):
    """Bodies in the order of their uuids, and the request specs of their batches. Specs that cannot be decoded are missing."""

    bodies: tuple[PastBody, ...]
    specs: dict[str, RequestSpec]


def page_after(tx: ApiTransaction, uuid: str, limit: int) -> HistoryPage:
    """The next bodies."""
    bodies = tuple(_body_from_row(row) for row in tx.execute(_AFTER, {"after": uuid, "limit": limit}).mappings())
    return HistoryPage(
        bodies=bodies, specs=mappings.specs_by_batch(tx, {body.batch_id for body in bodies if body.start is not None})
    )


def archived_body(table: str, row: Mapping[str, Any]) -> PastBody | None:
    """The body in a row of an archive (``db/archive.py``); None for a row of another table.

    Raises KeyError if a column is missing.
    """
    return _body_from_row(row) if table == str(instance_mappings) else None


def archived_spec(table: str, row: Mapping[str, Any]) -> tuple[str, RequestSpec | None] | None:
    """The batch and the request spec in a row of an archive, None if it cannot be decoded; None for a row of another table."""
    return (row["batch_id"], stored.load_or_none(row["spec"], RequestSpec)) if table == str(request_specs) else None


def _body_from_row(row: Mapping[str, Any] | sa.RowMapping) -> PastBody:
    launched, mapped = row["launched_at"], row["mapped_at"]
    if row["cell_uuid"] is None:
        launched = None  # shelved: it keeps the time of its server's first launch
    end = next((row[name] for name in ("terminated_at", "deleted_at", "updated_at") if row[name] is not None), None)
    return PastBody(
        uuid=row["instance_uuid"],
        server_uuid=row["server_uuid"] or row["instance_uuid"],
        turn=row["turn"],
        batch_id=row["batch_id"],
        cell_uuid=row["cell_uuid"],
        project_id=row["project_id"],
        start=launched if launched is None or mapped is None else min(launched, mapped),
        end=end if row["deleted"] else None,
    )
