"""UUIDs and times of aggregates.

Revision ID: 0022
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Time, Uuid, add_column, column, number_column

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    add_column("aggregates", column("uuid", Uuid, null=True))
    add_column("aggregates", number_column("created_at", Time))
    add_column("aggregates", column("updated_at", Time, null=True))
