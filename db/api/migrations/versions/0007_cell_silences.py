"""Cells that do not answer, so that lists say so without asking them.

Revision ID: 0007
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Time, Uuid, column, create_table

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    create_table(
        "cell_silences",
        column("cell_uuid", Uuid),
        column("since", Time),
        column("reason", sa.Text),
        key=("cell_uuid",),
    )
