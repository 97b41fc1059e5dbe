"""The row that transactions of several nodes of a Galera cluster conflict on.

Revision ID: 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from db.sql.migrations.shorthand import column, create_table

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    create_table("certification", column("id", sa.Integer), column("number", sa.BigInteger), key=("id",))
    row = sa.table("certification", sa.column("id", sa.Integer), sa.column("number", sa.BigInteger))
    if not op.get_bind().execute(sa.select(row.c.id)).first():  # both kinds of databases have it, and may be one
        op.bulk_insert(row, [{"id": 1, "number": 0}])
