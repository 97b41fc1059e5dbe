"""Key pairs of users.

Revision ID: 0016
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import BigId, Name, Time, column, create_table

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    create_table(
        "keypairs",
        column("id", BigId),
        column("user_id", Name),
        column("name", Name),
        column("key_type", sa.String(16)),
        column("fingerprint", Name),
        column("public_key", sa.Text),
        column("created_at", Time),
        key=("id",),
        unique=("user_id", "name"),
    )
