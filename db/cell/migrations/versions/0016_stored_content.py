"""What a task has written into the image store, as its host told.

Revision ID: 0016
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Json, add_column, column

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    add_column("instances", column("task_stored", Json, null=True))
