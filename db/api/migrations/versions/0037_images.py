"""The images in the image store, with the hashes of their contents.

Revision ID: 0037
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Json, Name, Time, Uuid, add_column, column, create_index, create_table

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    create_table(
        "images",
        column("image_id", Uuid),
        column("project_id", Name),
        column("name", Name),
        column("status", sa.String(16)),
        column("disk_format", sa.String(16)),
        column("size", sa.BigInteger),
        column("virtual_size", sa.BigInteger, null=True),
        column("hash_value", sa.String(128)),
        column("created_at", Time),
        key=("image_id",),
    )
    create_index("images", "project_id", "created_at")
    add_column("instance_mappings", column("image_hash", sa.String(128), null=True))
    add_column("instance_mappings", column("task_stored", Json, null=True))
