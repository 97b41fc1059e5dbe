"""Power of instances, and tasks for their hosts.

Revision ID: 0012
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Json, Name, Time, Uuid, add_column, column, create_index, create_table, number_column

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    add_column("instances", column("server_uuid", Uuid, null=True))
    add_column("instances", number_column("turn", sa.Integer))
    add_column("instances", sa.Column("power", sa.String(16), nullable=False, server_default=sa.text("'on'")))
    add_column("instances", number_column("task_number", sa.BigInteger))
    add_column("instances", sa.Column("task_state", sa.String(16), nullable=False, server_default=sa.text("'done'")))
    add_column("instances", column("task_fault", sa.Text, null=True))
    create_table(
        "tasks",
        column("instance_uuid", Uuid),
        column("number", sa.BigInteger),
        column("kind", sa.String(32)),
        column("args", Json),
        column("builder", Name, null=True),
        column("request_id", Name),
        column("sent_at", Time),
        key=("instance_uuid",),
    )
    create_index("tasks", "sent_at")
