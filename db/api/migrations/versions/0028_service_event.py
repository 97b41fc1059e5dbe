"""How far schedulers must have read a cell's feed before they choose one of its hosts.

Revision ID: 0028
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import add_column

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    add_column("inventories", sa.Column("service_event", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
