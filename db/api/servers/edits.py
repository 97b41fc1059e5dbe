"""What tenants change of a server after its boot: each edit is one transaction here, and nothing in the server's cell.

It writes the row that the server's pointer names, and both bodies of an open operation alike: each may be the server at its end.
Whoever accepts an operation copies the server's row into the twin and writes ``last_number`` of the home row in the same
transaction. So an edit that finds ``last_number`` as it was has missed no twin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import UNSET, UnsetType
from oslo_db.exception import RetryRequest

from db.api.rows import spec_fields
from db.api.rows.tables import instance_mappings, operations
from db.api.servers import mappings, names
from db.api.servers.listing import server_of
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from db.sql.readable import read_one
from objects import errors, server_name, stored
from objects.base import Object
from objects.instance import Server
from objects.server_name import NameScope
from objects.spec import ServerProperties

OWNER, ADMIN = "owner", "admin"
"""Who locked a server: its project, or an administrator of another one."""


class Edit(Object, frozen=True, kw_only=True):
    """The new values; UNSET: as it is. An empty ``description``, ``access_ip`` or ``key_name`` clears it. ``public_key``: the text
    of the new key. ``locked_by`` None: nobody.
    """

    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET
    hostname: str | UnsetType = UNSET
    access_ip_v4: str | UnsetType = UNSET
    access_ip_v6: str | UnsetType = UNSET
    auto_disk_config: bool | UnsetType = UNSET
    key_name: str | UnsetType = UNSET
    public_key: str | UnsetType = UNSET
    locked_by: str | UnsetType | None = UNSET
    locked_reason: str | UnsetType | None = UNSET

    def __repr__(self) -> str:
        """Without the values: metadata may hold secrets."""
        return f"Edit({', '.join(sorted(self.column_values()))})"

    def column_values(self) -> dict[str, Any]:
        """The new values of columns of ``instance_mappings``, by name."""
        values = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}
        return {name: stored.dump_value(value) if name in ("metadata", "tags") else value for name, value in values.items()}


class Edited(Object, frozen=True, kw_only=True):
    """The server's properties before and after an edit."""

    before: ServerProperties
    after: ServerProperties

    def __repr__(self) -> str:
        return "Edited(...)"


Decide = Callable[[Server, ServerProperties], Edit]
"""From the server and its properties to the edit; it may refuse by raising an error. It is called again if the edit is retried."""


def check_lock(uuid: str, locked_by: str | None, *, ignored: bool) -> None:
    """Raises errors.Conflict if the server is locked. ``ignored``: the caller may act on locked servers."""
    if locked_by is not None and not ignored:
        who = "an administrator" if locked_by == ADMIN else "its owner"
        raise errors.Conflict(f"Instance {uuid} is locked by {who}: unlock it first.")


_ROWS = (
    sa.select(instance_mappings.c.body_uuid, instance_mappings.c.last_number, operations.c.source_uuid, operations.c.twin_uuid)
    .select_from(instance_mappings.outerjoin(operations, operations.c.open_for == instance_mappings.c.instance_uuid))
    .where(instance_mappings.c.instance_uuid == sa.bindparam("uuid"), instance_mappings.c.server_uuid.is_(None))
)
_LOCK = by_index(
    sa.select(instance_mappings)
    .where(instance_mappings.c.instance_uuid.in_(dialect.uuids_parameter()))
    .order_by(instance_mappings.c.instance_uuid)
    .with_for_update(),
    instance_mappings,
)


def change_server(
    tx: ApiTransaction,
    uuid: str,
    decide: Decide,
    *,
    project_id: str | None,
    now: float,
    unique_names: NameScope = NameScope.OFF,
) -> Edited | None:
    """Edit the server as ``decide`` says; concurrent edits of a server wait for each other.

    ``project_id``: the project that the server must belong to; None: any. ``unique_names``: where a new name must be unique.
    Returns None if the server is unknown, deleted or of another project. Raises what ``decide`` raises, and errors.Conflict if
    another server has the name.
    """
    row_found = tx.execute(_ROWS, {"uuid": uuid}).one_or_none()
    if row_found is None:
        return None
    bodies = {row_found.body_uuid or uuid, row_found.source_uuid, row_found.twin_uuid} - {None}
    rows = {row.instance_uuid: row for row in tx.execute(_LOCK, {"uuids": sorted({uuid, *bodies})})}
    home, body = rows.get(uuid), rows.get(row_found.body_uuid or uuid)
    if home is None or body is None:
        return None
    if (home.body_uuid, home.last_number) != (row_found.body_uuid, row_found.last_number):
        raise RetryRequest(LookupError(f"server {uuid} has got another body meanwhile"))
    if body.deleted or project_id not in (None, body.project_id):
        return None
    server = read_one(body, server_of, instance_mappings)
    spec = mappings.specs_by_batch(tx, [body.batch_id]).get(body.batch_id)
    properties = spec.properties if spec is not None else ServerProperties()
    before = server.current_properties(properties)
    edit = decide(server, before)
    if columns := edit.column_values():
        live = [row for body_uuid, row in rows.items() if body_uuid in bodies and not row.deleted]
        _write(tx, live, edit, columns | {"updated_at": now})
    if edit.name is not UNSET and not server_name.is_same(edit.name, body.name):
        key = server_name.name_key(unique_names, body.project_id, edit.name)
        names.rename_server(tx, uuid, home.name_key, key, edit.name)
    known = {"description": edit.description, "metadata": edit.metadata, "tags": edit.tags}
    changes = {name: value for name, value in known.items() if value is not UNSET}
    return Edited(before=before, after=msgspec.structs.replace(server, **changes).current_properties(properties))


def _write(tx: ApiTransaction, rows: list[sa.Row[Any]], edit: Edit, values: dict[str, Any]) -> None:
    for row in rows:
        unchanged = sa.and_(
            instance_mappings.c.instance_uuid == row.instance_uuid,
            instance_mappings.c.deleted.is_(sa.false()),
            instance_mappings.c.user_version == row.user_version,
        )
        version = row.user_version + 1
        if not tx.execute(sa.update(instance_mappings).where(unchanged).values(**values, user_version=version)).rowcount:
            raise errors.Conflict(f"Instance {row.server_uuid or row.instance_uuid} was changed meanwhile: try again.")
    uuids = [row.instance_uuid for row in rows]
    if edit.tags is not UNSET:
        spec_fields.tag_servers(tx, uuids, edit.tags)
    if edit.metadata is not UNSET:
        spec_fields.map_servers(tx, uuids, edit.metadata)
