"""Holds: batches that keep their hosts and wait for their user to boot them.

Revision ID: 0034
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Name, Time, Uuid, add_column, column, create_index, create_table

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    create_table(
        "holds",
        column("batch_id", Uuid),
        column("project_id", Name),
        column("user_id", Name),
        column("created_at", Time),
        column("expires_at", Time),
        column("held_at", Time, null=True),
        key=("batch_id",),
    )
    create_index("holds", "project_id")
    create_index("holds", "expires_at")
    add_column("build_requests", column("held_until", Time, null=True))
