"""Insert rows, or change those that are there, in one statement: each server spells it its own way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import mysql, postgresql, sqlite


class Upsert:
    """The statement for one table. Rows are new or not by the columns ``key``, which have a unique index.

    Of a row that is there, the columns ``replaced`` take the new values and those of ``computed`` the expression's.
    """

    def __init__(
        self, table: sa.Table, *, key: Sequence[str], replaced: Sequence[str] = (), computed: Mapping[str, Any] | None = None
    ) -> None:
        computed = dict(computed or {})
        lite, post, my = sqlite.insert(table), postgresql.insert(table), mysql.insert(table)
        self._statements: dict[str, sa.Insert] = {
            "sqlite": lite.on_conflict_do_update(index_elements=key, set_={c: lite.excluded[c] for c in replaced} | computed),
            "postgresql": post.on_conflict_do_update(index_elements=key, set_={c: post.excluded[c] for c in replaced} | computed),
            "mysql": my.on_duplicate_key_update({c: my.inserted[c] for c in replaced} | computed),
        }

        # made once: to look a new statement up among the compiled ones takes longer than SQLite takes to run it
        self._returning = {name: statement.returning(*table.c) for name, statement in self._statements.items()}

    def __call__(self, tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Order the rows by their key: transactions that touch several then wait for each other in one direction only."""
        if rows:
            tx.execute(self._statements[tx.dialect.name], [dict(row) for row in rows])

    def one(self, tx: Connection, row: Mapping[str, Any]) -> sa.Row[Any]:
        """The same for a single row, which is returned as it is now. It stays locked until the transaction ends."""
        return tx.execute(self._returning[tx.dialect.name], dict(row)).one()
