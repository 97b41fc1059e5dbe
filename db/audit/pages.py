"""Reads of the API database in pages of keys: for whoever compares what it says with what the cells say.

A function ``..._after(tx, after, limit)`` gives the next keys in their order; others tell all about some keys. Nothing is locked.
What each noun has to tell is in ``db/audit/servers.py`` and its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import sqlalchemy as sa

from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.readable import sound_rows

KeysAfter = Callable[[ApiTransaction, str, int], list[str]]


def keys_of(column: sa.Column[Any], *conditions: sa.ColumnElement[bool]) -> KeysAfter:
    """What reads the next keys: the values of ``column``, each once, in rows that meet the conditions."""

    def after_key(tx: ApiTransaction, after: str, limit: int) -> list[str]:
        query = sa.select(column).where(column > after, *conditions).order_by(column).distinct().limit(limit)
        return [row[0] for row in sound_rows(tx.execute(query), column.table)]

    return after_key


def execute_in_pages(tx: ApiTransaction, query: sa.Select[Any], keys: Iterable[Any]) -> Iterator[sa.Row[Any]]:
    """The rows of a query that has an IN list ``dialect.uuids_parameter()``, for as many keys as there are."""
    ordered_keys = sorted(set(keys))
    for page in dialect.split_pages(ordered_keys):
        yield from tx.execute(query, {"uuids": page})
