"""The sealed secrets of rebuilds, with their tasks.

Revision ID: 0014
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Json, add_column, column

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    add_column("tasks", column("sealed", Json, null=True))
