"""The API database that wrote here last, and its highest mark.

Revision ID: 0011
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Uuid, column, create_table

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    create_table(
        "incarnation_seen",
        column("id", sa.Integer),
        column("incarnation", Uuid),
        column("mark", sa.BigInteger),
        key=("id",),
    )
