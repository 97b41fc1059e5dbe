"""Services say when they take no more orders; an action's end is no longer a second record of what the instance's row says.

Revision ID: 0003
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import add_column, drop_column

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    add_column("services", sa.Column("stopping", sa.Boolean, nullable=False, server_default=sa.false()))
    for name in ("finished_at", "message"):  # nothing was ever written there
        drop_column("instance_actions", name)
