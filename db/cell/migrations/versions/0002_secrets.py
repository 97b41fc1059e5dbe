"""Secrets of unfinished builds, sealed, in a table of their own; none is left in builds.

Revision ID: 0002
"""

from __future__ import annotations

from db.sql.migrations.scrub import remove_user_data
from db.sql.migrations.shorthand import Json, Time, Uuid, column, create_index, create_table

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    create_table(
        "build_secrets",
        column("batch_id", Uuid),
        column("sealed", Json),
        column("created_at", Time),
        key=("batch_id",),
    )
    create_index("instances", "batch_id")
    remove_user_data("builds", "instance_uuid")
