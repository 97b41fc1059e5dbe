"""Conductors of the cell, and what agents say of themselves when they start.

Revision ID: 0005
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Name, Time, Uuid, add_column, column, create_table

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    create_table(
        "cell_processes",
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
    add_column("services", column("release", sa.String(64), null=True))
    add_column("services", column("messages", sa.String(16), null=True))
    add_column("services", column("pid", sa.Integer, null=True))
    add_column("services", column("started_at", Time, null=True))
