"""What lists of images show, beside the hashes of their contents.

Revision ID: 0040
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Json, Time, add_column, column

revision = "0040"
down_revision = "0039"


def upgrade() -> None:
    add_column("images", column("updated_at", Time, null=True))
    add_column("images", column("details", Json, null=True))
