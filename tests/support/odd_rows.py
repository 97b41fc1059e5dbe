"""Rows of any table with values that no code of ours writes, as far as the table's database takes them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa

from db.api.rows import tables as api
from db.cell import tables as cell
from db.sql.connection import Connection
from db.sql.engine import Database

TURNS = range(5) if os.environ.get("ODD_ROWS") == "all" else (1, 3)
"""Which oddities of each kind of column rows get; all of them with ODD_ROWS=all."""

_TEXTS = ("", "{", "a\x1b[31m b\n ", "x" * 36, "-")
_LONG_TEXTS = ("", "{", '"x"', "[" * 3000, '{"a": [null, "\\ud800", 1e999]}')
_WHOLE = (-1, 2**31 - 1, 0, -(2**31), 7)
_TIMES: Mapping[str, tuple[Any, ...]] = {
    "sqlite": (-1.0, 1e300, "then", 0.0, float("inf")),
    "postgresql": (-1.0, 1e300, float("nan"), 0.0, float("inf")),
    "mysql": (-1.0, 1e300, -1e300, 0.0, 1e-300),
}


OF_ALL_SERVERS = {
    "cell_mappings": "a row is a whole cell",
    "certification": "its only row is the whole database's",
    "cell_marks": "a row is a whole cell",
    "cell_silences": "a row is a whole cell",
    "epochs": "its only row is all schedulers'",
    "feed_cursors": "a row is a whole cell",
    "finalized": "its only row is the whole deployment's",
    "feed_head": "its only row is the whole cell's",
    "incarnation": "its only row is the whole database's",
    "incarnation_seen": "its only row is the whole database's",
    "writers": "its rows are of whole processes",
}
"""Tables whose rows are about no server and no host; a cell that is odd as a whole is another matter."""


def tables() -> dict[str, sa.Table]:
    """All others, by "api-NAME" or "cell-NAME"."""
    levels = {"api": api.metadata, "cell": cell.metadata}
    every = {f"{level}-{table.name}": table for level, metadata in levels.items() for table in metadata.sorted_tables}
    return {name: table for name, table in every.items() if table.name not in OF_ALL_SERVERS}


def oddity(column: sa.Column[Any], turn: int, dialect: str) -> Any:
    """A value that the column takes."""
    kind = column.type
    if isinstance(kind, sa.Boolean):
        return bool(turn % 2)
    if isinstance(kind, sa.Text):
        return _LONG_TEXTS[turn]
    if isinstance(kind, sa.String):
        return _TEXTS[turn][: kind.length]
    if isinstance(kind, sa.Integer):
        return _WHOLE[turn]
    return _TIMES[dialect][turn]


def values(table: sa.Table, turn: int, dialect: str) -> dict[str, Any]:
    """Of all columns that name nothing: neither part of a key nor the name of something else."""
    keys = _unique(table)
    free = [column for column in table.columns if not column.primary_key and column.name not in keys]
    return {c.name: None if turn == 0 and c.nullable else oddity(c, turn, dialect) for c in free}


class Names(NamedTuple):
    """What rows that are made odd are about."""

    instance: str
    batch: str
    project: str
    host: str


@contextmanager
def odd(database: Database, table: sa.Table, about: Names, turn: int, dialect: str) -> Iterator[None]:
    """While inside, all rows that mention one of these names are odd; where there is none, one is made up.

    Afterwards those that are still there are as they were, and what was made up is gone.
    """
    mentions = sa.or_(*(c.in_(about) for c in table.columns if isinstance(c.type, sa.String) and not isinstance(c.type, sa.Text)))
    key = list(table.primary_key.columns)
    change = values(table, turn, dialect)
    made = _names(table, about)

    def spoil(tx: Connection) -> list[dict[str, Any]]:
        rows = [dict(row) for row in tx.execute(sa.select(table).where(mentions)).mappings()]
        for row in rows:
            _write(tx, table, key, row, change)
        if not rows:
            tx.execute(sa.insert(table).values(_raw(table, change | made)))
        return rows

    def mend(tx: Connection) -> None:
        for row in rows:
            _write(tx, table, key, row, {name: row[name] for name in change})
        if not rows:
            tx.execute(sa.delete(table).where(*(column == made[column.name] for column in key)))

    rows = database.write(spoil)
    try:
        yield
    finally:
        database.write(mend)


def _names(table: sa.Table, about: Names) -> dict[str, Any]:
    """Of a made-up row: what it is about, and a key."""
    of = {"batch_id": about.batch, "project_id": about.project, "host": about.host, "node": about.host}
    keys = {column.name for column in table.primary_key}
    texts = {c.name for c in table.columns if isinstance(c.type, sa.String) and not isinstance(c.type, sa.Text)}
    named = {name: of.get(name, about.instance) for name in texts if name in of or name in keys or name.endswith("uuid")}
    return dict.fromkeys(_unique(table) & texts, about.instance) | named | dict.fromkeys(keys - texts, 10**6)


def _unique(table: sa.Table) -> set[str]:
    """The columns of unique constraints and unique indexes."""
    constraints = [each.columns for each in table.constraints if isinstance(each, sa.UniqueConstraint)]
    indexes = [each.columns for each in table.indexes if each.unique]
    return {column.name for columns in (*constraints, *indexes) for column in columns}


def _write(tx: Connection, table: sa.Table, key: list[sa.Column[Any]], row: Mapping[str, Any], change: Mapping[str, Any]) -> None:
    if change:
        tx.execute(sa.update(table).where(*(column == row[column.name] for column in key)).values(_raw(table, change)))


def _raw(table: sa.Table, change: Mapping[str, Any]) -> dict[sa.Column[Any], Any]:
    """Texts go as they are, whatever the type of their column is in Python."""
    return {table.c[name]: sa.literal(value, sa.String()) if isinstance(value, str) else value for name, value in change.items()}
