"""The terms of nodes: sizes that operators accepted, and their own allocation ratios.

Revision ID: 0019
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Json, Name, column, create_table

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    create_table(
        "host_terms",
        column("host", Name),
        column("node", Name),
        column("accepted", Json),
        column("waiting", Json, null=True),
        column("ratios", Json),
        key=("host", "node"),
    )
