"""The machine that runs as a host, and one that was refused.

Revision ID: 0020
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Json, Name, add_column, make_column

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    add_column("services", make_column("machine", sa.String(64), null=True))
    add_column("services", make_column("machine_name", Name, null=True))
    add_column("services", make_column("refused", Json, null=True))
