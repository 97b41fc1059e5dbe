"""Fields of request specs that lists filter and sort by, copied into columns and two tables, so that no list decodes a spec."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from db.api.tables import instance_mappings, request_metadata, request_specs, request_tags
from db.sql import dialect
from db.sql.connection import ApiTransaction
from objects import stored, text
from objects.spec import RequestSpec, ServerProperties

_UNREADABLE = ""
"""The flavor of a spec that cannot be decoded. NULL means that a release without these columns wrote the row."""


# -- written with the spec ---------------------------------------------------------------------------------------------------


def columns(spec: RequestSpec | None) -> dict[str, Any]:
    """The columns of a row of ``request_specs``, by name. ``spec`` None: it cannot be decoded."""
    asked = spec.properties if spec is not None else None
    return {
        "flavor_id": (_fit(spec.flavor.flavor_id) if spec is not None else None) or _UNREADABLE,
        "image_id": _fit(spec.image.id) if spec is not None and spec.image is not None else None,
        "key_name": _fit(asked.key_name) if asked is not None else None,
        "config_drive": asked is not None and asked.config_drive,
        "description": _fit(asked.description) if asked is not None else None,
    }


def label(tx: ApiTransaction, specs: Mapping[str, RequestSpec | None]) -> None:
    """Insert the missing rows of tags and metadata of these batches."""
    tags: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    for batch, spec in specs.items():
        asked = spec.properties if spec is not None else ServerProperties()
        tags += [{"batch_id": batch, "tag": tag} for tag in sorted(set(asked.tags)) if _fit(tag) is not None]
        pairs += [
            {"batch_id": batch, "key": key, "value": value}
            for key, value in sorted(asked.metadata.items())
            if _fit(key) is not None and _fit(value) is not None
        ]
    dialect.insert_new(tx, request_tags, tags)
    dialect.insert_new(tx, request_metadata, pairs)


def _fit(value: str | None) -> str | None:
    """The value, or None if no column can hold it. The API accepts no such value, and no filter finds one from elsewhere."""
    return value if value is not None and len(value) <= text.NAME_LENGTH and text.is_safe(value) else None


# -- filling rows of older releases ------------------------------------------------------------------------------------------

_UNFILLED = request_specs.c.flavor_id.is_(None)
_FILL = (
    sa.update(request_specs)
    .where(request_specs.c.batch_id == sa.bindparam("batch"))
    .values({name: sa.bindparam(f"to_{name}") for name in columns(None)})
)


def unfilled(tx: ApiTransaction) -> int:
    """How many specs were written by a release without these columns."""
    return int(tx.execute(sa.select(sa.func.count()).select_from(request_specs).where(_UNFILLED)).scalar_one())


def fill(tx: ApiTransaction, most: int) -> int:
    """Fill the columns and tables for at most ``most`` of these specs; return for how many, 0 if none is left. Idempotent."""
    rows = tx.execute(sa.select(request_specs.c.batch_id, request_specs.c.spec).where(_UNFILLED).limit(most)).all()
    if not rows:
        return 0
    specs = {row.batch_id: stored.load_or_none(row.spec, RequestSpec) for row in rows}
    named = ({f"to_{name}": value for name, value in columns(spec).items()} for spec in specs.values())
    tx.execute(_FILL, [{"batch": batch, **values} for batch, values in zip(specs, named, strict=True)])
    label(tx, specs)
    return len(rows)


# -- in lists ----------------------------------------------------------------------------------------------------------------


def of_server(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    """A column of ``request_specs`` as a subquery for the server of a row of ``instance_mappings``."""
    query = sa.select(column).where(request_specs.c.batch_id == instance_mappings.c.batch_id)
    return query.correlate(instance_mappings).scalar_subquery()


def tagged(tags: Collection[str]) -> sa.ScalarSelect[int]:
    """How many of these tags the server has. One subquery for all tags, because MariaDB joins at most 61 tables."""
    return _count(request_tags, request_tags.c.tag.in_(sorted(set(tags))))


def mapped(metadata: Mapping[str, str]) -> sa.ScalarSelect[int]:
    """How many of these keys the server's metadata maps to these values."""
    pairs = [sa.and_(request_metadata.c.key == key, request_metadata.c.value == value) for key, value in metadata.items()]
    return _count(request_metadata, sa.or_(*pairs))


def _count(table: sa.Table, which: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    query = sa.select(sa.func.count()).select_from(table).where(table.c.batch_id == instance_mappings.c.batch_id, which)
    return query.correlate(instance_mappings).scalar_subquery()
