"""Which API database this is, and what its cells have confirmed of it.

Revision ID: 0012
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Time, Uuid, column, create_table

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    create_table(
        "incarnation",
        column("id", sa.Integer),
        column("uuid", Uuid),
        column("mark", sa.BigInteger),
        column("server", sa.String(64)),
        column("state", sa.String(16)),
        column("reason", sa.Text),
        column("changed_at", Time),
        key=("id",),
    )
    create_table("cell_marks", column("cell_uuid", Uuid), column("mark", sa.BigInteger), key=("cell_uuid",))
