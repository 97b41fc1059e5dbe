"""Convert a row of ``instance_mappings`` into a ``Server``."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from objects.instance import Server


def server_of(row: sa.Row[Any]) -> Server:
    return Server(
        uuid=row.instance_uuid,
        batch_id=row.batch_id,
        project_id=row.project_id,
        user_id=row.user_id,
        name=row.name,
        state=row.state,
        created_at=row.created_at,
        updated_at=row.updated_at,
        cell_uuid=row.cell_uuid,
        deleted=row.deleted,
        launch_index=row.launch_index,
        host=row.host,
        node=row.node,
        availability_zone=row.availability_zone,
        mapped_at=row.mapped_at,
        deleted_at=row.deleted_at,
        deleted_by=row.deleted_by,
        launched_at=row.launched_at,
        terminated_at=row.terminated_at,
        fault=row.fault,
    )
