"""Who deleted a server.

Revision ID: 0033
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Name, add_column, column

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    add_column("instance_mappings", column("deleted_by_user", Name, null=True))
