"""Whether the broker showed an agent to be its host's.

Revision ID: 0008
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import add_column, column

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    add_column("services", column("identified", sa.Boolean, null=True))
