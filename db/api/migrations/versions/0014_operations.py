"""Bodies of servers, what tenants change after the boot, and operations.

Revision ID: 0014
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Json, Name, Time, Uuid, add_column, column, create_index, create_table, number_column

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    mappings = "instance_mappings"
    for name in ("body_uuid", "server_uuid"):
        add_column(mappings, column(name, Uuid, null=True))
    add_column(mappings, number_column("turn", sa.Integer))
    add_column(mappings, sa.Column("hidden", sa.Boolean, nullable=False, server_default=sa.false()))
    for name in ("last_number", "task_number", "user_version"):
        add_column(mappings, number_column(name, sa.BigInteger))
    add_column(mappings, sa.Column("power", sa.String(16), nullable=False, server_default=sa.text("'on'")))
    add_column(mappings, sa.Column("task_state", sa.String(16), nullable=False, server_default=sa.text("'done'")))
    add_column(mappings, column("task_fault", sa.Text, null=True))
    for name in ("image_id", "locked_by", "locked_reason", "description"):
        add_column(mappings, column(name, Name, null=True))
    for name in ("metadata", "tags"):
        add_column(mappings, column(name, Json, null=True))
    create_table(
        "operations",
        column("uuid", Uuid),
        column("server_uuid", Uuid),
        column("open_for", Uuid, null=True),
        column("kind", sa.String(32)),
        column("args", Json),
        column("state", sa.String(16)),
        column("number", sa.BigInteger),
        column("power_before", sa.String(16)),
        column("held", sa.Boolean),
        column("forced", sa.Boolean),
        column("source_uuid", Uuid, null=True),
        column("twin_uuid", Uuid, null=True),
        column("project_id", Name),
        column("user_id", Name),
        column("request_id", Name),
        column("source_host", Name, null=True),
        column("target_host", Name, null=True),
        column("vcpus", sa.Integer, null=True),
        column("memory_mb", sa.Integer, null=True),
        column("created_at", Time),
        column("updated_at", Time),
        column("deadline", Time),
        column("ended_at", Time, null=True),
        column("outcome", sa.String(16), null=True),
        column("fault", sa.Text, null=True),
        key=("uuid",),
        unique=("open_for",),
    )
    create_index("operations", "twin_uuid")
    create_index("operations", "server_uuid", "created_at", name="server")
    create_index("operations", "ended_at")
    for table, name in (("server_tags", "tag"), ("server_metadata", "key")):
        extra = (column("value", Name),) if name == "key" else ()
        create_table(table, column("instance_uuid", Uuid), column(name, Name), *extra, key=("instance_uuid", name))
