"""The few statements that each database spells its own way."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import mysql, postgresql, sqlite

IN_LIST = 500
"""Longest IN list used. MariaDB turns lists of 1,000 and more into a join, after which the lock order is no longer the key's."""


def insert_new(tx: Connection, table: sa.Table, rows: list[dict[str, Any]]) -> int:
    """Insert the rows whose primary key is not there yet, leave the others as they are; return how many were inserted."""
    if not rows:
        return 0
    statement = _INSERT_NEW[tx.dialect.name](table).execution_options(preserve_rowcount=True)  # psycopg: -1 without
    return tx.execute(statement, rows).rowcount


def _sqlite(table: sa.Table) -> sa.Insert:
    return sqlite.insert(table).on_conflict_do_nothing()


def _postgresql(table: sa.Table) -> sa.Insert:
    return postgresql.insert(table).on_conflict_do_nothing()


def _mysql(table: sa.Table) -> sa.Insert:
    return mysql.insert(table).prefix_with("IGNORE")


_INSERT_NEW = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql, "mariadb": _mysql}


def hold(tx: Connection) -> None:
    """Before rows are fetched page by page: PostgreSQL gives them out in a transaction only, and a read is none there otherwise.

    The read's end rolls it back.
    """
    driver: Any = tx.connection.driver_connection
    if tx.dialect.name == "postgresql" and driver.autocommit:
        driver.execute("BEGIN")


def uuids(name: str = "uuids") -> sa.BindParameter[list[str]]:
    """A bound IN list."""
    return sa.bindparam(name, expanding=True)
