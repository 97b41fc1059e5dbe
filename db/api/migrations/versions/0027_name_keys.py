"""Keys of server names that must be unique.

Revision ID: 0027
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import add_column, column, create_index

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    add_column("instance_mappings", column("name_key", sa.String(80), null=True))
    create_index("instance_mappings", "name_key", unique=True)
