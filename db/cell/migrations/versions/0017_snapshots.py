"""The snapshots of servers that were shelved: a restored API database learns of them from here.

Revision ID: 0017
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Uuid, column, create_table

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    create_table(
        "snapshots",
        column("instance_uuid", Uuid),
        column("number", sa.BigInteger),
        column("image_id", Uuid),
        key=("instance_uuid",),
    )
