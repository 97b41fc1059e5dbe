"""Backups of databases in tests: every row of every table, put back later on any server."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from db.sql.connection import Connection
from db.sql.engine import Database

Backup = dict[str, list[dict[str, Any]]]


def take(database: Database, metadata: sa.MetaData) -> Backup:
    def read(tx: Connection) -> Backup:
        return {name: [dict(row) for row in tx.execute(sa.select(table)).mappings()] for name, table in metadata.tables.items()}

    return database.write(read)


def restore(database: Database, metadata: sa.MetaData, backup: Backup) -> None:
    """All that happened since is forgotten."""

    def write(tx: Connection) -> None:
        for name, table in metadata.tables.items():
            tx.execute(sa.delete(table))
            if backup[name]:
                tx.execute(sa.insert(table), backup[name])

    database.write(write)
