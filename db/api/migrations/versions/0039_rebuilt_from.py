"""The image of a server's last rebuild, with the properties that filters read.

Revision ID: 0039
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Json, add_column, column

revision = "0039"
down_revision = "0038"


def upgrade() -> None:
    add_column("instance_mappings", column("rebuilt_from", Json, null=True))
