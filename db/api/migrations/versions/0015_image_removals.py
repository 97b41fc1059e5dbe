"""Snapshots that nothing needs any more.

Revision ID: 0015
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Time, Uuid, column, create_table

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    create_table(
        "image_removals",
        column("image_id", Uuid),
        column("written_by", Uuid, null=True),
        column("since", Time),
        key=("image_id",),
    )
