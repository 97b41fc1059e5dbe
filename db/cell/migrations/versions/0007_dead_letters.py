"""What a step could not process, with the reason and the time of the next try.

Revision ID: 0007
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Name, Time, column, create_table

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    create_table(
        "cell_dead_letters",
        column("step", sa.String(64)),
        column("key", Name),
        column("reason", sa.Text),
        column("tries", sa.Integer),
        column("first_at", Time),
        column("last_at", Time),
        column("due", Time),
        column("skipped", sa.Boolean),
        key=("step", "key"),
    )
