"""Why an instance's batch is rolled back.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import add_column

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    add_column("instances", sa.Column("rolled_back", sa.Text))
