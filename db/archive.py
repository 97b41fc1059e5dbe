"""Rows as lines of JSON, for copies of what is forgotten: ``{"table": "instances", "row": {...}}``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from objects import errors


def lines_of(tx: Connection, key: sa.Column[str], values: Sequence[str]) -> list[str]:
    """The rows whose ``key`` has one of these values, a line each."""
    rows = tx.execute(sa.select(key.table).where(key.in_(values)).order_by(key)).mappings()
    # Not encoded by msgspec: names of tables and columns are SQLAlchemy's own strings.
    return [json.dumps({"table": str(key.table), "row": dict(row)}, ensure_ascii=False) for row in rows]


def read(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Each row of a file with its line and its table. A last line that was cut off is left out: its row was not deleted.

    Raises Invalid, with the line, for a file that cannot be read or is no archive.
    """
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.endswith("\n"):
                    content = json.loads(line)
                    yield number, content["table"], content["row"]
    except OSError as error:
        raise errors.Invalid(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise errors.Invalid(f"{path}, line {max(number, 1)}: is not a line of 'superconductor db archive'") from None
