"""What the ``env.py`` of both histories does: run the changes on the connection that ``db/sql/sync.py`` hands over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context


def run(metadata: sa.MetaData, version_table: str) -> None:
    """Run what Alembic was asked for inside the caller's transaction, whose end is the caller's too."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=metadata,
        version_table=version_table,
        transactional_ddl=True,
        transaction_per_migration=False,
    )
    context.run_migrations()
