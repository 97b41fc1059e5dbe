"""Projects that may use flavors that are not public.

Revision ID: 0019
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Name, column, create_table

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    create_table(
        "flavor_access",
        column("flavor_id", Name),
        column("project_id", Name),
        key=("flavor_id", "project_id"),
    )
