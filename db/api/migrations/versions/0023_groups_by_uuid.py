"""Server groups whose names may be the same, and the groups of request specs.

Revision ID: 0023
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Name, Time, add_column, column, create_index, drop_unique, number_column

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    add_column("server_groups", number_column("created_at", Time))
    create_index("server_groups", "project_id")
    drop_unique("server_groups", "project_id", "name")
    add_column("request_specs", column("group_uuid", Name, null=True))
    create_index("request_specs", "group_uuid")
