"""Images that were made of servers.

Revision ID: 0031
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Json, Name, Time, Uuid, column, create_index, create_table

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    create_table(
        "server_images",
        column("image_id", Uuid),
        column("project_id", Name),
        column("server_uuid", Uuid),
        column("complete", sa.Boolean),
        column("backup_type", Name),
        column("asked", Json),
        column("created_at", Time),
        key=("image_id",),
    )
    create_index("server_images", "project_id", "created_at")
    create_index("server_images", "server_uuid", "created_at")
