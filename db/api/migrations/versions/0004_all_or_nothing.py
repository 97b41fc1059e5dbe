"""Batches that stand or fall as a whole.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Time, Uuid, column, create_table

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    create_table(
        "all_or_nothing",
        column("batch_id", Uuid),
        column("fault", sa.Text, null=True),
        column("created_at", Time),
        column("failed_at", Time, null=True),
        key=("batch_id",),
    )
