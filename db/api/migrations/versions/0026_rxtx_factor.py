"""The bandwidth factor of flavors, which is kept and shown, and which nothing reads.

Revision ID: 0026
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import add_column

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    add_column("flavors", sa.Column("rxtx_factor", sa.Double(), nullable=False, server_default=sa.text("1")))
