"""Ports that projects make before there is a server for them.

Revision ID: 0036
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Json, Name, Time, Uuid, add_column, column, create_index, create_table

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    create_table(
        "ports",
        column("uuid", Uuid),
        column("project_id", Name),
        column("network_uuid", Uuid),
        column("name", Name),
        column("description", Name),
        column("tags", Json),
        column("created_at", Time),
        column("updated_at", Time),
        key=("uuid",),
    )
    create_index("ports", "project_id")
    add_column("addresses", column("port_uuid", Uuid, null=True))
    create_index("addresses", "port_uuid")
