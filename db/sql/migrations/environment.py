"""What the ``env.py`` of both histories does: run the changes on the connection that ``db/sql/sync.py`` hands over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import context
from sqlalchemy.schema import CreateIndex, CreateTable

from db.sql import dialect


def run(metadata: sa.MetaData, version_table: str, first_rows: Mapping[sa.Table, Sequence[dict[str, Any]]]) -> None:
    """Run what Alembic was asked for inside the caller's transaction, whose end is the caller's too.

    A new database gets the tables of ``metadata``, and ``first_rows``: rows that are changed and never inserted.
    """
    tx = context.config.attributes["connection"]
    if context.config.attributes["is_new"]:
        create_missing_tables(tx, metadata)
        for table, rows in first_rows.items():
            dialect.insert_new(tx, table, list(rows))
    context.configure(
        connection=tx,
        target_metadata=metadata,
        version_table=version_table,
        transactional_ddl=True,
        transaction_per_migration=False,
    )
    context.run_migrations()


def create_missing_tables(tx: sa.Connection, metadata: sa.MetaData) -> None:
    """Create each table and index that an interrupted run on MariaDB has not made, or the other kind in the same database."""
    for table in metadata.sorted_tables:
        tx.execute(CreateTable(table, if_not_exists=True))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            tx.execute(CreateIndex(index, if_not_exists=True))
