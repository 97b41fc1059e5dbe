"""Limits of users inside projects, and the usage that these are compared with.

Revision ID: 0035
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Name, add_column, column, create_table, number_column

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    create_table(
        "user_quotas",
        column("project_id", Name),
        column("user_id", Name),
        *(column(f"max_{name}", sa.BigInteger, null=True) for name in ("instances", "cores", "ram")),
        *(column(f"used_{name}", sa.BigInteger) for name in ("instances", "cores", "ram")),
        key=("project_id", "user_id"),
    )
    create_table(
        "user_quota_limits",
        column("project_id", Name),
        column("user_id", Name),
        column("name", sa.String(64)),
        column("value", sa.BigInteger),
        key=("project_id", "user_id", "name"),
    )
    add_column("quotas", number_column("limited_users", sa.BigInteger))
