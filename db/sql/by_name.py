"""What the rows that operators define have in common: they are found by name, exist once, and say so when not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from db.sql.engine import DuplicateEntry
from objects import errors


def insert_row(tx: Connection, table: sa.Table, values: Mapping[str, Any], subject: str) -> sa.CursorResult[Any]:
    """Insert one row; raise Conflict "``subject`` already exists" where its key or name is taken."""
    try:
        return tx.execute(sa.insert(table), dict(values))
    except DuplicateEntry:
        raise errors.Conflict(f"{subject} already exists") from None


def update_row(tx: Connection, statement: sa.Update, values: Mapping[str, Any], subject: str) -> None:
    """Change one row; raise NotFound "``subject`` not found", or Conflict where a new name is taken."""
    try:
        changed = tx.execute(statement, dict(values)).rowcount
    except DuplicateEntry:
        raise errors.Conflict(f"{subject} cannot be changed: the new name is taken") from None
    if changed == 0:
        raise errors.NotFound(f"{subject} not found")


def delete(tx: Connection, statement: sa.Delete, subject: str) -> None:
    """Delete one row; raise NotFound "``subject`` not found" where it is not there."""
    if tx.execute(statement).rowcount == 0:
        raise errors.NotFound(f"{subject} not found")


def require_row(row: sa.Row[Any] | None, subject: str) -> sa.Row[Any]:
    """The row; raise NotFound "``subject`` not found" where there is none."""
    if row is None:
        raise errors.NotFound(f"{subject} not found")
    return row
