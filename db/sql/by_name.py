"""What the rows that operators define have in common: they are found by name, exist once, and say so when not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from db.sql.engine import DuplicateEntry
from objects import errors


def insert(tx: Connection, table: sa.Table, values: Mapping[str, Any], what: str) -> sa.CursorResult[Any]:
    """Insert one row; raise Conflict "``what`` already exists" where its key or name is taken."""
    try:
        return tx.execute(sa.insert(table), dict(values))
    except DuplicateEntry:
        raise errors.Conflict(f"{what} already exists") from None


def update(tx: Connection, statement: sa.Update, values: Mapping[str, Any], what: str) -> None:
    """Change one row; raise NotFound "``what`` not found", or Conflict where a new name is taken."""
    try:
        changed = tx.execute(statement, dict(values)).rowcount
    except DuplicateEntry:
        raise errors.Conflict(f"{what} cannot be changed: the new name is taken") from None
    if changed == 0:
        raise errors.NotFound(f"{what} not found")


def delete(tx: Connection, statement: sa.Delete, what: str) -> None:
    """Delete one row; raise NotFound "``what`` not found" where it is not there."""
    if tx.execute(statement).rowcount == 0:
        raise errors.NotFound(f"{what} not found")


def found(row: sa.Row[Any] | None, what: str) -> sa.Row[Any]:
    """The row; raise NotFound "``what`` not found" where there is none."""
    if row is None:
        raise errors.NotFound(f"{what} not found")
    return row
