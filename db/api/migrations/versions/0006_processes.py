"""Processes of the API level.

Revision ID: 0006
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Name, Time, Uuid, column, create_table

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    create_table(
        "api_processes",
        column("uuid", Uuid),
        column("binary", sa.String(64)),
        column("host", Name),
        column("pid", sa.Integer),
        column("release", sa.String(64)),
        column("messages", sa.String(16)),
        column("started_at", Time),
        column("last_seen", Time),
        key=("uuid",),
    )
