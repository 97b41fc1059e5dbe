"""Guests that run on hosts of the cell and that its records do not account for.

Revision ID: 0009
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Json, Name, Time, Uuid, column, create_table

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    create_table(
        "unknown_guests",
        column("host", Name),
        column("uuid", Uuid),
        column("guest", Json),
        column("reported_at", Time),
        key=("host", "uuid"),
    )
