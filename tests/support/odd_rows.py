"""Rows of any table with values that no code of ours writes, as far as the table's database takes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from db.connection import Connection
from db.engine import Database

ROUNDS = 5
"""Different oddities of each kind of column."""

_TEXTS = ("", "{", "a\x1b[31m b\n ", "x" * 36, "-")
_LONG_TEXTS = ("", "{", '"x"', "[" * 3000, '{"a": [null, "\\ud800", 1e999]}')
_WHOLE = (-1, 2**31 - 1, 0, -(2**31), 7)
_TIMES: Mapping[str, tuple[Any, ...]] = {
    "sqlite": (-1.0, 1e300, "then", 0.0, float("inf")),
    "postgresql": (-1.0, 1e300, float("nan"), 0.0, float("inf")),
    "mysql": (-1.0, 1e300, -1e300, 0.0, 1e-300),
}


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
    keys = {column.name for constraint in table.constraints if isinstance(constraint, sa.UniqueConstraint) for column in constraint}
    odd = {
        column.name: oddity(column, turn, dialect) for column in table.columns if not column.primary_key and column.name not in keys
    }
    return {name: None if turn == 0 and table.c[name].nullable else value for name, value in odd.items()}


@contextmanager
def changed(database: Database, table: sa.Table, names: Collection[str], change: Mapping[str, Any]) -> Iterator[int]:
    """While inside, rows that mention one of these names have these values; how many such rows there are.

    Afterwards those that are still there have their own again.
    """
    mentions = sa.or_(
        *(c.in_(sorted(names)) for c in table.columns if isinstance(c.type, sa.String) and not isinstance(c.type, sa.Text))
    )
    key = list(table.primary_key.columns)

    def spoil(tx: Connection) -> list[dict[str, Any]]:
        rows = [dict(row) for row in tx.execute(sa.select(table).where(mentions)).mappings()]
        if rows and change:
            _write(tx, table, [[row[c.name] for c in key] for row in rows], [change] * len(rows))
        return rows

    def mend(tx: Connection) -> None:
        _write(tx, table, [[row[c.name] for c in key] for row in rows], [{name: row[name] for name in change} for row in rows])

    rows = database.write(spoil)
    try:
        yield len(rows)
    finally:
        if rows and change:
            database.write(mend)


def _write(tx: Connection, table: sa.Table, keys: list[list[Any]], changes: list[Mapping[str, Any]]) -> None:
    for key, change in zip(keys, changes, strict=True):
        of = [column == value for column, value in zip(table.primary_key.columns, key, strict=True)]
        tx.execute(
            sa.update(table).where(*of).values({table.c[name]: _raw(table.c[name], value) for name, value in change.items()})
        )


def _raw(column: sa.Column[Any], value: Any) -> Any:
    return sa.literal(value, sa.String()) if isinstance(value, str) else value
