"""Operations of a restored database, which take no step before they were compared with the cells.

Revision ID: 0038
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import add_column, column

revision = "0038"
down_revision = "0037"


def upgrade() -> None:
    add_column("operations", column("frozen", sa.Text, null=True))
