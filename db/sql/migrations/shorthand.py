"""What revisions write tables with. It is frozen history: ``db/sql/types.py`` may change, this may only be added to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from objects import errors, text

Uuid = sa.String(36)
Name = sa.String(255)
Time: sa.types.TypeEngine[float] = sa.Double()
Json = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


COLLATION = "utf8mb4_nopad_bin"
"""Of every table on MariaDB: text goes by its bytes, and trailing blanks count. Databases of older schemas had ``PADDED``."""
PADDED = "utf8mb4_bin"

MENDED_PAGE_SIZE = 500
"""Number of rows read at once to find texts that must be repaired."""


def column(name: str, kind: Any, *, null: bool = False) -> sa.Column[Any]:
    """A column; the kind may be a type of SQLAlchemy's or its class, for which it has no common name."""
    return sa.Column(name, kind, nullable=null)


def number_column(name: str, kind: Any) -> sa.Column[Any]:
    """A column to add to a table that has rows: a number, 0 unless it is written."""
    return sa.Column(name, kind, nullable=False, server_default=sa.text("0"))


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
    if added.name not in _columns(table):
        op.add_column(table, added)


def drop_column(table: str, name: str) -> None:
    """The opposite, skipped likewise. The column is in no index."""
    if name in _columns(table):
        op.drop_column(table, name)


def drop_unique(table: str, *columns: str) -> None:
    """Drop the unique constraint of these columns, unless an interrupted run has dropped it. SQLite copies the table."""
    name = f"uq_{table}_{'_'.join(columns)}"
    if name in {constraint["name"] for constraint in sa.inspect(op.get_bind()).get_unique_constraints(table)}:
        with op.batch_alter_table(table) as changes:
            changes.drop_constraint(name, type_="unique")


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}


def compare_blanks(*changes: str) -> None:
    """Give all tables on MariaDB the collation that counts trailing blanks; ``changes`` are statements to run beside that.

    Tables of both collations cannot be joined, so all are locked meanwhile: other sessions wait, and none fails. Harmless to
    repeat after an interrupted run.
    """
    tx = op.get_bind()
    if tx.dialect.name not in ("mysql", "mariadb"):
        return
    padded = sa.text("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_collation = :old")
    tables = [f"`{name}`" for name in sorted(tx.execute(padded, {"old": PADDED}).scalars())]
    if tables:
        tx.exec_driver_sql(f"LOCK TABLES {', '.join(f'{table} WRITE' for table in tables)}")
    try:
        for table in tables:
            tx.exec_driver_sql(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {COLLATION}")
    finally:
        tx.exec_driver_sql("UNLOCK TABLES")
    for change in changes:
        tx.exec_driver_sql(change)


def mend_texts(name: str, key: str, *, plain: tuple[str, ...] = (), json: tuple[str, ...] = ()) -> None:
    """Replace control characters in these columns of a table, page by page; ``key`` is its primary key.

    ``json``: columns of JSON text, where a character may be escaped. What is no JSON is left as it is.
    """
    tx = op.get_bind()
    table = sa.table(name, sa.column(key), *(sa.column(column) for column in (*plain, *json)))
    page = sa.select(table).order_by(table.c[key]).limit(MENDED_PAGE_SIZE)
    rows = tx.execute(page).all()
    while rows:
        for row in rows:
            if changed := _mended(row._mapping, plain, json):
                tx.execute(sa.update(table).where(table.c[key] == row._mapping[key]).values(changed))
        rows = tx.execute(page.where(table.c[key] > rows[-1]._mapping[key])).all()


def _mended(row: Mapping[Any, Any], plain: tuple[str, ...], json: tuple[str, ...]) -> dict[str, str]:
    found = {column: text.clean(row[column], len(row[column]) * 4) for column in plain if row[column]}
    found |= {column: mended_json(row[column]) for column in json if row[column]}
    return {column: value for column, value in found.items() if value != row[column]}


def mended_json(stored: str) -> str:
    """JSON text whose texts and keys have no control characters."""
    if text.is_safe(stored) and "\\u00" not in stored:
        return stored
    try:
        value = msgspec.json.decode(stored)
        mended = text.cleaned(value, len(stored) * 4, nesting=_NESTING_LIMIT)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, errors.Invalid):
        return stored
    return stored if mended == value else msgspec.json.encode(mended).decode()


_NESTING_LIMIT = 200
