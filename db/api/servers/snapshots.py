"""Snapshots of shelved servers, as users see them: each is an image named after its server until that leaves the store.

The server's operation or its shelved body names the snapshot. There is no row for it among images: it comes and goes with these.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from db.api.rows.tables import instance_mappings, operations, request_specs
from db.api.servers import mappings
from db.sql.connection import ApiTransaction
from objects.base import Object
from objects.operation import OperationKind, OperationState
from objects.spec import RequestSpec


class ShelvedSnapshot(Object, frozen=True, kw_only=True):
    """``min_disk``: GiB of the root disk. ``base_image``: that the server was built from, if any. ``created_at``: in seconds."""

    image_id: str
    project_id: str
    user_id: str
    server_uuid: str
    server_name: str
    min_disk: int
    base_image: str | None
    created_at: float


_M, _O, _S = instance_mappings.c, operations.c, request_specs.c
_COLUMNS = (_M.project_id, _M.user_id, _M.name, _M.image_id.label("rebuilt_from"), _M.batch_id)
_SERVER = sa.func.coalesce(_M.server_uuid, _M.instance_uuid).label("server")
_ON_HOST = sa.select(*_COLUMNS, _SERVER, _O.uuid.label("snapshot"), _O.updated_at.label("since")).where(
    _O.open_for.is_not(None),
    _O.kind == OperationKind.SHELVE,
    _O.state == OperationState.SHELVED,
    _M.instance_uuid == _O.source_uuid,
)
"""Shelved servers whose guests are off on their hosts: the operation is open, and has the UUID of the snapshot."""
_OFFLOADED = sa.select(*_COLUMNS, _SERVER, sa.null().label("snapshot"), _S.created_at.label("since")).where(
    _M.state == "shelved", _M.deleted == sa.false(), _M.hidden == sa.false(), _S.batch_id == _M.batch_id
)
"""Shelved servers that are on no host: the request of the body names the snapshot."""


def list_all(tx: ApiTransaction, project_id: str | None) -> list[ShelvedSnapshot]:
    """Those of a project; None: of every project."""
    rows: list[sa.Row[Any]] = []
    for query in (_ON_HOST, _OFFLOADED):
        rows += tx.execute(query if project_id is None else query.where(_M.project_id == project_id))
    specs = mappings.specs_by_batch(tx, {row.batch_id for row in rows}) if rows else {}
    shelved = [(row, specs[row.batch_id]) for row in rows if row.batch_id in specs]
    # by snapshot: an offload between the two statements would show its server twice
    return list({i: _snapshot_from_row(row, spec, i) for row, spec in shelved if (i := _image_of(row, spec)) is not None}.values())


def get(tx: ApiTransaction, image_id: str, project_id: str | None) -> ShelvedSnapshot | None:
    """One of those of ``list_all``."""
    return next((snapshot for snapshot in list_all(tx, project_id) if snapshot.image_id == image_id), None)


def _image_of(row: sa.Row[Any], spec: RequestSpec) -> str | None:
    return row.snapshot or (spec.move.image_id if spec.move is not None else None)


def _snapshot_from_row(row: sa.Row[Any], spec: RequestSpec, image_id: str) -> ShelvedSnapshot:
    return ShelvedSnapshot(
        image_id=image_id,
        project_id=row.project_id,
        user_id=row.user_id,
        server_uuid=row.server,
        server_name=row.name,
        min_disk=spec.flavor.root_gb,
        base_image=row.rebuilt_from or (spec.image.id if spec.image is not None else None),
        created_at=row.since,
    )
