"""Many rows changed by one statement, each to values of its own."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from db.sql import dialect


class UpdateMany:
    """``UPDATE .. SET .. WHERE key = .. AND condition`` for rows of parameters; returns how many rows were matched.

    MariaDB gets one statement for up to ``IN_LIST`` rows, a join with their values: its driver would send one for each. The others'
    drivers have a fast way of their own, so there it is ``statement``, which says the same for a single row.
    """

    def __init__(
        self, statement: sa.Update, table: sa.Table, *, key: tuple[str, str], values: Mapping[str, str], where: str
    ) -> None:
        """``key``: the column of the primary key and its parameter; ``values``: parameters by column.

        ``where``: the other conditions, with ``t.`` before columns and ``w.`` before parameters.
        """
        self._one = statement
        self._table = table.name
        self._key, self._key_value = key
        self._values = dict(values)
        self._where = where

    def __call__(self, tx: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Rows are locked in the order given."""
        if not rows:
            return 0
        if len(rows) == 1 or tx.dialect.name not in ("mysql", "mariadb"):
            return tx.execute(self._one, [dict(row) for row in rows] if len(rows) > 1 else dict(rows[0])).rowcount
        names = tuple(rows[0])
        matched = 0
        for start in range(0, len(rows), dialect.IN_LIST):
            some = rows[start : start + dialect.IN_LIST]
            matched += tx.exec_driver_sql(self._text(names, len(some)), tuple(row[n] for row in some for n in names)).rowcount
        return matched

    @functools.lru_cache(maxsize=512)  # noqa: B019 - made once per statement of the program, which lives as long
    def _text(self, names: tuple[str, ...], rows: int) -> str:
        first = ", ".join(f"%s AS {name}" for name in names)
        other = ", ".join(["%s"] * len(names))
        values = " UNION ALL SELECT ".join([first, *([other] * (rows - 1))])
        changes = ", ".join(f"t.{column} = w.{parameter}" for column, parameter in self._values.items())
        parts = (  # the names are the table's and the program's own
            f"UPDATE (SELECT {values}) AS w",
            f"STRAIGHT_JOIN {self._table} AS t FORCE INDEX FOR JOIN (PRIMARY) ON t.{self._key} = w.{self._key_value}",
            f"SET {changes} WHERE {self._where}",
        )
        return " ".join(parts)
