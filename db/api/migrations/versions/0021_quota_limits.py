"""Further limits of projects, and the default class.

Revision ID: 0021
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Name, column, create_table

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    create_table(
        "quota_limits",
        column("project_id", Name),
        column("name", sa.String(64)),
        column("value", sa.BigInteger),
        key=("project_id", "name"),
    )
