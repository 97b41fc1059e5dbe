"""The hostnames of servers, as lists filter and sort by them."""

from __future__ import annotations

import sqlalchemy as sa

from db.api.rows.tables import instance_mappings, request_specs
from db.sql.connection import ApiTransaction
from objects import stored
from objects.spec import RequestSpec
from objects.text import hostname_of

_M = instance_mappings.c
_MISSING = _M.hostname.is_(None)
_SET = (
    sa.update(instance_mappings)
    .where(_M.instance_uuid == sa.bindparam("body"), _MISSING)
    .values(hostname=sa.bindparam("to_hostname"))
)


def hostname_of_spec(spec: RequestSpec | None, name: str, uuid: str) -> str:
    """The hostname of a server that its tenant has not changed: that of the request, or made of its name."""
    return (spec.properties.hostname if spec is not None else None) or hostname_of(name, uuid)


def count_missing(tx: ApiTransaction) -> int:
    """How many mappings a release without stored hostnames has written."""
    return int(tx.execute(sa.select(sa.func.count()).select_from(instance_mappings).where(_MISSING)).scalar_one())


def fill_page(tx: ApiTransaction, most: int) -> int:
    """Store the hostname of at most ``most`` of these; return of how many, 0 if none is left. Idempotent."""
    query = (
        sa.select(_M.instance_uuid, _M.server_uuid, _M.name, request_specs.c.spec)
        .select_from(instance_mappings.outerjoin(request_specs, request_specs.c.batch_id == _M.batch_id))
        .where(_MISSING)
        .limit(most)
    )
    rows = [
        {
            "body": row.instance_uuid,
            "to_hostname": hostname_of_spec(
                stored.load_or_none(row.spec, RequestSpec), row.name, row.server_uuid or row.instance_uuid
            ),
        }
        for row in tx.execute(query)
    ]
    if rows:
        tx.execute(_SET, sorted(rows, key=lambda row: row["body"]))  # in the order in which others lock rows
    return len(rows)
