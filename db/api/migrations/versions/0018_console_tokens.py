"""Tokens that open remote consoles.

Revision ID: 0018
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Name, Time, Uuid, column, create_index, create_table

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    create_table(
        "console_tokens",
        column("digest", sa.String(64)),
        column("server_uuid", Uuid),
        column("body_uuid", Uuid),
        column("console_type", sa.String(32)),
        column("host", Name),
        column("address", Name),
        column("port", sa.Integer),
        column("expires_at", Time),
        key=("digest",),
    )
    create_index("console_tokens", "server_uuid")
    create_index("console_tokens", "expires_at")
