"""Rows locked and deleted by key, and no other row touched on the way.

MariaDB reads a small table from end to end rather than look a few keys up, and a statement that locks then waits for every row that
anybody else has locked: a hand-over waited for all claims in flight. A SELECT or an UPDATE can be told which index to use; a DELETE
cannot, so there the rows are locked first, and then deleted by a join that has no other way than the primary key.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from db.sql import dialect

S = TypeVar("S", sa.Select[Any], sa.Update)

_MARIADB = ("mysql", "mariadb")


def by_index(statement: S, table: sa.Table, index: str = "PRIMARY") -> S:
    """Make MariaDB find the rows of ``table`` through this index; the other servers need not be told."""
    text = f"FORCE INDEX ({index})"
    for name in _MARIADB:
        if isinstance(statement, sa.Select):
            statement = statement.with_hint(table, text, name)
        else:
            statement = statement.with_hint(text, table, name)
    return statement


class KeyedDelete:
    """``DELETE .. WHERE key IN (..) AND condition``, which returns the columns ``returning`` of what it deleted.

    ``index`` is that of ``key`` where this is not the primary key.
    """

    def __init__(
        self, key: sa.Column[Any], *, returning: Sequence[sa.Column[Any]], where: Sequence[Any] = (), index: str = "PRIMARY"
    ) -> None:
        self._table = key.table
        condition = sa.and_(key.in_(dialect.uuids_parameter("keys")), *where)
        self._returned = len(returning)
        self._one_statement = sa.delete(self._table).where(condition).returning(*returning)
        self._whole_key = list(self._table.primary_key.columns)
        self._unique = self._whole_key == [key]
        lock = sa.select(*returning, *(column.label(f"key_{n}") for n, column in enumerate(self._whole_key))).where(condition)
        self._lock = by_index(lock.order_by(*self._whole_key).with_for_update(), self._table, index)

    def __call__(self, tx: Connection, keys: Sequence[str], **parameters: object) -> list[sa.Row[Any]]:
        """Rows are locked in the order of ``keys`` where the server has an order, in several statements where there are many."""
        rows: list[sa.Row[Any]] = []
        for page in dialect.split_pages(keys):
            values = {"keys": page, **parameters}
            if tx.dialect.name in _MARIADB and not (self._unique and len(page) == 1):  # a single key always uses the index
                rows += self._lock_and_delete(tx, values)
            else:
                rows += tx.execute(self._one_statement, values).all()
        return rows

    def _lock_and_delete(self, tx: Connection, values: dict[str, Any]) -> Sequence[sa.Row[Any]]:
        rows = tx.execute(self._lock, values).all()
        if not rows:
            return rows
        names = tuple(column.name for column in self._whole_key)
        key_values = {f"v{r}_{n}": row[self._returned + n] for r, row in enumerate(rows) for n in range(len(names))}
        deleted = tx.execute(_delete_by_join(self._table.name, names, len(rows)), key_values).rowcount
        if deleted != len(rows):
            raise RuntimeError(f"{len(rows) - deleted} locked rows of {self._table.name} disappeared under their lock")
        return rows


@functools.lru_cache(maxsize=1024)
def _delete_by_join(table: str, names: tuple[str, ...], rows: int) -> sa.TextClause:
    key_rows = " UNION ALL ".join(
        "SELECT " + ", ".join(f":v{row}_{n} AS k{n}" for n in range(len(names))) for row in range(rows)
    )  # fmt: skip
    match = " AND ".join(f"t.{name} = w.k{n}" for n, name in enumerate(names))
    return sa.text(  # the names are the table's own
        f"DELETE t FROM ({key_rows}) AS w STRAIGHT_JOIN {table} AS t FORCE INDEX FOR JOIN (PRIMARY) ON {match}"
    )
