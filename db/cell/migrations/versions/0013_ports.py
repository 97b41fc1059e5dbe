"""The network interfaces of an instance, which its builds need.

Revision ID: 0013
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Json, add_column, column

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    add_column("builds", column("ports", Json, null=True))
