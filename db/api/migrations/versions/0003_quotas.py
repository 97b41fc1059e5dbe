"""Quotas: a row per project with its limits and its usage, and with every mapping what it takes of it.

Revision ID: 0003
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

from db.sql.migrations.shorthand import Name, add_column, column, create_table

revision = "0003"
down_revision = "0002"

PAGE_SIZE = 200


def upgrade() -> None:
    for name in ("vcpus", "memory_mb"):
        add_column("instance_mappings", column(name, sa.Integer, null=True))
    create_table(
        "quotas",
        column("project_id", Name),
        *(column(f"max_{name}", sa.BigInteger, null=True) for name in ("instances", "cores", "ram")),
        *(column(f"used_{name}", sa.BigInteger) for name in ("instances", "cores", "ram")),
        key=("project_id",),
    )
    _measure()
    _count()


def _measure() -> None:
    """Of every server that is not deleted: what its batch's flavor was."""
    tx, after = op.get_bind(), ""
    specs = sa.table("request_specs", sa.column("batch_id", sa.String), sa.column("spec", sa.Text))
    query = sa.select(specs).where(specs.c.batch_id > sa.bindparam("after")).order_by(specs.c.batch_id).limit(PAGE_SIZE)
    mappings = _mappings()
    size = (
        sa.update(mappings)
        .where(mappings.c.batch_id == sa.bindparam("batch"), mappings.c.deleted == sa.false())
        .values(vcpus=sa.bindparam("cores"), memory_mb=sa.bindparam("ram"))
    )
    while rows := tx.execute(query, {"after": after}).all():
        flavors = {row.batch_id: json.loads(row.spec)["flavor"] for row in rows}
        tx.execute(size, [{"batch": batch, "cores": f["vcpus"], "ram": f["memory_mb"]} for batch, f in flavors.items()])
        after = rows[-1].batch_id


def _count() -> None:
    """Anew, where an interrupted run on MariaDB had counted: there are no limits yet that could be lost."""
    tx, mappings = op.get_bind(), _mappings()
    used: list[sa.ColumnClause[int]] = [sa.column(f"used_{name}", sa.BigInteger) for name in ("instances", "cores", "ram")]
    quotas = sa.table("quotas", sa.column("project_id"), *used)
    sums = (
        sa.select(
            mappings.c.project_id, sa.func.count(mappings.c.vcpus), sa.func.sum(mappings.c.vcpus), sa.func.sum(mappings.c.memory_mb)
        )
        .where(mappings.c.deleted == sa.false(), mappings.c.vcpus.is_not(None))
        .group_by(mappings.c.project_id)
    )
    tx.execute(sa.delete(quotas))
    tx.execute(sa.insert(quotas).from_select(["project_id", *used], sums))


def _mappings() -> sa.TableClause:
    names = ("batch_id", "project_id", "vcpus", "memory_mb")
    return sa.table("instance_mappings", *(sa.column(name) for name in names), sa.column("deleted", sa.Boolean))
