"""What request a client's key was used for.

Revision ID: 0010
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import add_column

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    add_column("client_tokens", sa.Column("digest", sa.String(80)))
