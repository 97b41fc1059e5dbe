"""Server groups in the API database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from db.api.projects import user_quotas
from db.api.rows import epochs
from db.api.rows.epochs import Epoch
from db.api.rows.tables import instance_mappings, request_specs, server_groups
from db.sql import by_name, clock, dialect
from db.sql.connection import ApiTransaction
from db.sql.readable import convert_readable
from objects import errors
from objects.group import GroupPolicy, ServerGroup
from objects.quota import UNLIMITED

_C, _M, _S = server_groups.c, instance_mappings.c, request_specs.c
_FIELDS = ServerGroup.__struct_fields__
_COUNT = sa.select(sa.func.count()).select_from(server_groups).where(_C.project_id == sa.bindparam("project"))
_SERVER = sa.func.coalesce(_M.server_uuid, _M.instance_uuid)
_OF_GROUPS = sa.and_(
    _S.group_uuid.in_(dialect.uuids_parameter()), _M.batch_id == _S.batch_id, _M.deleted == sa.false(), _M.hidden == sa.false()
)
_MEMBERS = sa.select(_S.group_uuid, _SERVER.label("server")).where(_OF_GROUPS).order_by(_M.created_at, _M.launch_index, _SERVER)
_SIZES = sa.select(_S.group_uuid, sa.func.count().label("size")).where(_OF_GROUPS).group_by(_S.group_uuid)
_SIZES_OF_USER = _SIZES.where(_M.user_id == sa.bindparam("user"))


def create(tx: ApiTransaction, group: ServerGroup, limit: int = UNLIMITED, user_limit: int = UNLIMITED) -> None:
    """Add a group; ``limit``: the most that its project may have, and ``user_limit``: its user there.

    Creates at the same moment may exceed these by their number.

    Raises Conflict if its uuid is taken, and OverQuota.
    """
    if limit != UNLIMITED and count_groups(tx, group.project_id) >= limit:
        raise errors.OverQuota("Quota exceeded, too many server groups.")
    if user_limit != UNLIMITED and user_quotas.count_groups(tx, group.project_id, group.user_id) >= user_limit:
        raise errors.OverQuota("Quota exceeded, too many server groups of this user.")
    by_name.insert_row(tx, server_groups, _column_values(group) | {"created_at": clock.read(tx)}, f"Server group '{group.uuid}'")
    epochs.bump_epoch(tx, Epoch.GROUPS)


def count_groups(tx: ApiTransaction, project_id: str) -> int:
    """The number of groups of a project."""
    return int(tx.execute(_COUNT, {"project": project_id}).scalar_one())


def list_all(tx: ApiTransaction, project_id: str | None = None) -> list[ServerGroup]:
    """The groups of one project or of all, by name."""
    query = sa.select(server_groups).order_by(_C.name, _C.uuid)
    if project_id is not None:
        query = query.where(_C.project_id == project_id)
    return convert_readable(tx.execute(query), _group_from_row, server_groups)


def is_stored(tx: ApiTransaction, uuid: str) -> bool:
    return tx.execute(sa.select(_C.uuid).where(_C.uuid == uuid)).first() is not None


def list_page(tx: ApiTransaction, project_id: str | None, limit: int, offset: int = 0) -> list[ServerGroup]:
    """At most ``limit`` groups of one project or of all, the oldest first, without the first ``offset``."""
    query = sa.select(server_groups).order_by(_C.created_at, _C.uuid).limit(limit).offset(offset)
    if project_id is not None:
        query = query.where(_C.project_id == project_id)
    return convert_readable(tx.execute(query), _group_from_row, server_groups)


def get(tx: ApiTransaction, uuid: str) -> ServerGroup:
    """Raises NotFound, with the Compute API's message."""
    row = tx.execute(sa.select(server_groups).where(_C.uuid == uuid)).one_or_none()
    groups = convert_readable([row], _group_from_row, server_groups) if row is not None else []
    if not groups:
        raise errors.NotFound(f"Instance group {uuid[:255]} could not be found.")
    return groups[0]


def list_members(tx: ApiTransaction, uuids: Sequence[str]) -> dict[str, list[str]]:
    """The servers of each of these groups that are not deleted, the oldest first. Queued servers and those in ERROR count."""
    members_by_group: dict[str, list[str]] = {uuid: [] for uuid in uuids}
    for page in dialect.split_pages(uuids):
        for row in tx.execute(_MEMBERS, {"uuids": sorted(page)}):
            members_by_group[row.group_uuid].append(row.server)
    return members_by_group


def refuse_crowds(tx: ApiTransaction, uuids: Sequence[str], limit: int, more: int = 0, user_id: str | None = None) -> None:
    """Raise OverQuota if one of these groups has more than ``limit`` servers, after they were added in this transaction.

    ``more``: servers that are not in it yet, but count for each group. ``user_id``: count only the servers of this user.
    """
    if not uuids or limit == UNLIMITED:
        return
    statement = _SIZES if user_id is None else _SIZES_OF_USER
    parameters = {"uuids": sorted(set(uuids))} | ({} if user_id is None else {"user": user_id})
    sizes = {row.group_uuid: row.size for row in tx.execute(statement, parameters)}
    if any(sizes.get(uuid, 0) + more > limit for uuid in uuids):
        raise errors.OverQuota("Quota exceeded, too many servers in group")


def rename_group(tx: ApiTransaction, group: ServerGroup) -> None:
    """Rename the group. Policy and project never change, because members were placed by them. Raises NotFound."""
    statement = sa.update(server_groups).where(_C.uuid == group.uuid)
    by_name.update_row(tx, statement, {"name": group.name}, f"Server group '{group.name}'")
    epochs.bump_epoch(tx, Epoch.GROUPS)


def delete(tx: ApiTransaction, uuid: str) -> None:
    """Delete the group; its members stay, without a policy. Raises NotFound."""
    by_name.delete(tx, sa.delete(server_groups).where(_C.uuid == uuid), f"Server group '{uuid}'")
    epochs.bump_epoch(tx, Epoch.GROUPS)


def _column_values(group: ServerGroup) -> dict[str, Any]:
    return msgspec.structs.asdict(group) | {"policy": str(group.policy)}


def _group_from_row(row: sa.Row[Any]) -> ServerGroup:
    return ServerGroup(**{name: row._mapping[name] for name in _FIELDS} | {"policy": GroupPolicy(row.policy)})
