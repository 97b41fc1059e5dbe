"""Server groups in the API database."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from db.api import epochs
from db.api.epochs import Epoch
from db.api.tables import server_groups
from db.sql import named
from db.sql.connection import ApiTransaction
from objects.group import GroupPolicy, ServerGroup


def create(tx: ApiTransaction, group: ServerGroup) -> None:
    """Add a group. Raises Conflict if its uuid, or its name within its project, is taken."""
    named.insert(tx, server_groups, _values(group), f"Server group '{group.name}'")
    epochs.bump(tx, Epoch.GROUPS)


def list_all(tx: ApiTransaction, project_id: str | None = None) -> list[ServerGroup]:
    """The groups of one project or of all, by name."""
    query = sa.select(server_groups).order_by(server_groups.c.name, server_groups.c.uuid)
    if project_id is not None:
        query = query.where(server_groups.c.project_id == project_id)
    return [_group(row) for row in tx.execute(query)]


def exists(tx: ApiTransaction, uuid: str) -> bool:
    return tx.execute(sa.select(server_groups.c.uuid).where(server_groups.c.uuid == uuid)).first() is not None


def update(tx: ApiTransaction, group: ServerGroup) -> None:
    """Rename the group. Policy and project never change, because members were placed by them.

    Raises NotFound, and Conflict if the name is taken.
    """
    statement = sa.update(server_groups).where(server_groups.c.uuid == group.uuid)
    named.update(tx, statement, {"name": group.name}, f"Server group '{group.name}'")
    epochs.bump(tx, Epoch.GROUPS)


def delete(tx: ApiTransaction, uuid: str) -> None:
    """Delete the group; its members stay, without a policy. Raises NotFound."""
    named.delete(tx, sa.delete(server_groups).where(server_groups.c.uuid == uuid), f"Server group '{uuid}'")
    epochs.bump(tx, Epoch.GROUPS)


def _values(group: ServerGroup) -> dict[str, Any]:
    return msgspec.structs.asdict(group) | {"policy": str(group.policy)}


def _group(row: sa.Row[Any]) -> ServerGroup:
    return ServerGroup(**{**row._mapping, "policy": GroupPolicy(row.policy)})
