"""Up to which messages version an operator has finalized the upgrade.

Revision ID: 0029
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Time, column, create_table

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    create_table(
        "finalized",
        column("id", sa.Integer),
        column("messages", sa.String(16)),
        column("release", sa.String(64)),
        column("at", Time),
        key=("id",),
    )
