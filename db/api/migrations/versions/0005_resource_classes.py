"""Amounts of custom resource classes: what hosts offer, what is claimed of it, and what each claim takes.

Revision ID: 0005
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Json, add_column, column

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    for name in ("cap_resources", "used_resources"):
        add_column("inventories", column(name, Json, null=True))
    add_column("allocations", column("resources", Json, null=True))
