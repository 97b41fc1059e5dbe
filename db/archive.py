"""Rows as lines of JSON, for copies of what is forgotten: ``{"table": "instances", "row": {...}}``."""

from __future__ import annotations

import json
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection


def lines(tx: Connection, key: sa.Column[str], values: Sequence[str]) -> list[str]:
    """The rows whose ``key`` has one of these values, a line each."""
    found = tx.execute(sa.select(key.table).where(key.in_(values)).order_by(key)).mappings()
    # Not encoded by msgspec: names of tables and columns are SQLAlchemy's own strings.
    return [json.dumps({"table": str(key.table), "row": dict(row)}, ensure_ascii=False) for row in found]
