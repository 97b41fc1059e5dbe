"""Fields of request specs that lists filter and sort by, copied into columns and two tables, so that no list decodes a spec.

Two more tables hold the tags and metadata of servers whose tenants changed them after the boot; they replace those of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from db.api.rows.tables import instance_mappings, request_metadata, request_specs, request_tags, server_metadata, server_tags
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import KeyedDelete
from objects import text
from objects.spec import RequestSpec, ServerProperties

_UNREADABLE = ""
"""The flavor of a spec that cannot be decoded. NULL means that a release without these columns wrote the row."""
_NO_GROUP = ""
"""The server group of a spec without one. NULL means that a release without this column wrote the row."""


# -- written with the spec ---------------------------------------------------------------------------------------------------


def columns_of(spec: RequestSpec | None) -> dict[str, Any]:
    """The columns of a row of ``request_specs``, by name. ``spec`` None: it cannot be decoded."""
    properties = spec.properties if spec is not None else None
    return {
        "flavor_id": (_fit_column(spec.flavor.flavor_id) if spec is not None else None) or _UNREADABLE,
        "image_id": _fit_column(spec.image.id) if spec is not None and spec.image is not None else None,
        "key_name": _fit_column(properties.key_name) if properties is not None else None,
        "config_drive": properties is not None and properties.config_drive,
        "description": _fit_column(properties.description) if properties is not None else None,
        "group_uuid": (_fit_column(spec.group.uuid) if spec is not None and spec.group is not None else None) or _NO_GROUP,
    }


def label_batches(tx: ApiTransaction, specs: Mapping[str, RequestSpec | None]) -> None:
    """Insert the missing rows of tags and metadata of these batches."""
    tags: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    for batch, spec in specs.items():
        properties = spec.properties if spec is not None else ServerProperties()
        tags += [{"batch_id": batch} | row for row in _tag_rows(properties.tags)]
        pairs += [{"batch_id": batch} | row for row in _pair_rows(properties.metadata)]
    dialect.insert_new(tx, request_tags, tags)
    dialect.insert_new(tx, request_metadata, pairs)


def _tag_rows(tags: Collection[str]) -> list[dict[str, str]]:
    return [{"tag": tag} for tag in sorted(set(tags)) if _fit_column(tag) is not None]


def _pair_rows(metadata: Mapping[str, str]) -> list[dict[str, str]]:
    return [
        {"key": key, "value": value}
        for key, value in sorted(metadata.items())
        if _fit_column(key) is not None and _fit_column(value) is not None
    ]


def _fit_column(value: str | None) -> str | None:
    """The value, or None if no column can hold it. The API accepts no such value, and no filter finds one from elsewhere."""
    return value if value is not None and len(value) <= text.NAME_LENGTH and text.is_safe(value) else None


# -- written with an edit of servers -----------------------------------------------------------------------------------------

_UNTAG = KeyedDelete(server_tags.c.instance_uuid, returning=[server_tags.c.tag])
_UNMAP = KeyedDelete(server_metadata.c.instance_uuid, returning=[server_metadata.c.key])


def tag_servers(tx: ApiTransaction, uuids: Sequence[str], tags: Collection[str]) -> None:
    """Replace the tags of these rows of ``instance_mappings``, whose column ``tags`` is written in the same transaction."""
    _UNTAG(tx, uuids)
    dialect.insert_new(tx, server_tags, [{"instance_uuid": uuid} | row for uuid in uuids for row in _tag_rows(tags)])


def map_servers(tx: ApiTransaction, uuids: Sequence[str], metadata: Mapping[str, str]) -> None:
    """Replace their metadata likewise."""
    _UNMAP(tx, uuids)
    dialect.insert_new(tx, server_metadata, [{"instance_uuid": uuid} | row for uuid in uuids for row in _pair_rows(metadata)])


def forget_servers(tx: ApiTransaction, uuids: Sequence[str]) -> None:
    """Delete the tags and metadata of rows of ``instance_mappings`` that are deleted in the same transaction."""
    _UNTAG(tx, uuids)
    _UNMAP(tx, uuids)


# -- in lists ----------------------------------------------------------------------------------------------------------------


def of_server(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    """A column of ``request_specs`` as a subquery for the server of a row of ``instance_mappings``."""
    query = sa.select(column).where(request_specs.c.batch_id == instance_mappings.c.batch_id)
    return query.correlate(instance_mappings).scalar_subquery()


def description_of() -> sa.ColumnElement[str | None]:
    """The server's description: the tenant's, of which an empty one counts as none, or that of its request."""
    edited = instance_mappings.c.description
    return sa.case((edited.is_(None), of_server(request_specs.c.description)), else_=sa.func.nullif(edited, ""))


def key_name() -> sa.ColumnElement[str | None]:
    """The name of the server's key pair: that of its last rebuild, of which an empty one counts as none, or of its request."""
    edited = instance_mappings.c.key_name
    return sa.case((edited.is_(None), of_server(request_specs.c.key_name)), else_=sa.func.nullif(edited, ""))


def count_tags(tags: Collection[str]) -> sa.ColumnElement[int]:
    """How many of these tags the server has. One subquery for all tags, because MariaDB joins at most 61 tables."""
    ordered_tags = sorted(set(tags))
    return _count_labels(instance_mappings.c.tags, request_tags, server_tags, lambda table: table.c.tag.in_(ordered_tags))


def count_metadata(metadata: Mapping[str, str]) -> sa.ColumnElement[int]:
    """How many of these keys the server's metadata maps to these values."""

    def match_pairs(table: sa.Table) -> sa.ColumnElement[bool]:
        return sa.or_(*(sa.and_(table.c.key == key, table.c.value == value) for key, value in metadata.items()))

    return _count_labels(instance_mappings.c.metadata, request_metadata, server_metadata, match_pairs)


def _count_labels(
    edited: sa.Column[Any], request_table: sa.Table, server_table: sa.Table, which: Callable[[sa.Table], sa.ColumnElement[bool]]
) -> sa.ColumnElement[int]:
    """Count labels in the request's table ``request_table``, or in the server's ``server_table`` if its column ``edited`` has a
    value.

    Of a CASE the database runs only the subquery that it needs: a server without edits costs as much as if there were none.
    """
    of_request, of_server = (
        sa.select(sa.func.count())
        .select_from(table)
        .where(table.c[key] == instance_mappings.c[key], which(table))
        .correlate(instance_mappings)
        .scalar_subquery()
        for table, key in ((request_table, "batch_id"), (server_table, "instance_uuid"))
    )
    return sa.case((edited.is_(None), of_request), else_=of_server)
