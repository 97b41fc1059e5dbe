"""When a request got its cell, and who deleted its server when; notifications that are still to be sent.

Revision ID: 0008
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import BigId, Json, Name, Time, Uuid, add_column, column, create_table

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    for name, kind in (("mapped_at", Time), ("deleted_at", Time), ("deleted_by", Name)):
        add_column("instance_mappings", sa.Column(name, kind))
    create_table(
        "notifications",
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
