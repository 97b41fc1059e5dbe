"""What revisions write tables with. It is frozen history: ``db/sql/types.py`` may change, this may only be added to."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

Uuid = sa.String(36)
Name = sa.String(255)
Time: sa.types.TypeEngine[float] = sa.Double()
Json = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


COLLATION = "utf8mb4_nopad_bin"
"""Of every table on MariaDB: text goes by its bytes, and trailing blanks count."""


def make_column(name: str, kind: Any, *, null: bool = False, default: Any = None) -> sa.Column[Any]:
    """A column; the kind may be a type of SQLAlchemy's or its class, for which it has no common name.

    ``default``: what the server writes where a statement does not. A column to add to a table that has rows needs one, or NULL.
    """
    return sa.Column(name, kind, nullable=null, server_default=default)


def create_table(name: str, *columns: sa.Column[Any], key: tuple[str, ...], unique: tuple[str, ...] = ()) -> None:
    """A table with its primary key and at most one unique constraint. Skipped where an interrupted run on MariaDB had made it.

    A key of one integer column of kind ``BigId`` counts by itself.
    """
    if len(key) == 1:
        counts = any(c.name == key[0] and c.type is BigId for c in columns)
        columns = tuple(sa.Column(c.name, c.type, nullable=False, autoincrement=counts) if c.name == key[0] else c for c in columns)
    items: list[Any] = [*columns, sa.PrimaryKeyConstraint(*key, name=f"pk_{name}")]
    if unique:
        items.append(sa.UniqueConstraint(*unique, name=f"uq_{name}_{'_'.join(unique)}"))
    op.create_table(name, *items, if_not_exists=True, mysql_engine="InnoDB", mysql_charset="utf8mb4", mysql_collate=COLLATION)


def create_index(table: str, *columns: str, name: str = "", unique: bool = False) -> None:
    """An index, named for its table and columns unless a name says what it is for."""
    op.create_index(f"ix_{table}_{name or '_'.join(columns)}", table, list(columns), if_not_exists=True, unique=unique)


def add_column(table: str, added: sa.Column[Any]) -> None:
    """A column of a table that has rows: NULL, or with a default of the server. Skipped where an interrupted run had made it."""
    if added.name not in _columns_of(table):
        op.add_column(table, added)


def _columns_of(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
