"""The key pairs that servers were rebuilt with, and the sealed secrets of rebuilds under way.

Revision ID: 0025
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Json, Name, add_column, column

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    add_column("instance_mappings", column("key_name", Name, null=True))
    add_column("instance_mappings", column("public_key", sa.Text(), null=True))
    add_column("operations", column("sealed", Json, null=True))
