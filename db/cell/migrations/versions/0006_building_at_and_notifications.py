"""When a row was staged and when its host began to build it; notifications that are still to be sent.

Revision ID: 0006
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import BigId, Json, Name, Time, Uuid, add_column, column, create_table

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    add_column("instances", sa.Column("building_at", Time))
    add_column("instance_actions", sa.Column("written_at", Time))
    create_table(
        "cell_notifications",
        column("id", BigId),
        column("message_id", Uuid),
        column("event_type", sa.String(64)),
        column("priority", sa.String(8)),
        column("subject", Name),
        column("facts", Json),
        column("at", Time),
        column("taken_until", Time),
        key=("id",),
    )
