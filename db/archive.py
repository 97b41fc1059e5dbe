"""Copies of the rows that ``db/purge.py`` forgets, as lines of JSON: ``{"table": "instances", "row": {...}}``.

What tenants gave in confidence is never among them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from db import purge
from db.tables import api, cell

_OF_ROWS = (cell.instances.c.uuid, *(table.c.instance_uuid for table in purge.HANGING_ON_ROWS))
_OF_BATCHES = (api.request_specs.c.batch_id, api.decisions.c.batch_id)


def rows(tx: Connection, uuids: Sequence[str]) -> list[str]:
    """In a cell: everything about these servers, a line for each row."""
    return [line for key in _OF_ROWS for line in _lines(tx, key, uuids)]


def servers(tx: Connection, uuids: Sequence[str]) -> list[str]:
    """In the API database: the same, with the requests of their batches. Those of a batch that has other servers come again."""
    lines = _lines(tx, api.instance_mappings.c.instance_uuid, uuids)
    batches = purge.batches_of(tx, uuids)
    return lines + [line for key in _OF_BATCHES for line in _lines(tx, key, batches)]


def _lines(tx: Connection, key: sa.Column[str], values: Sequence[str]) -> list[str]:
    found = tx.execute(sa.select(key.table).where(key.in_(values)).order_by(key)).mappings()
    # Not by msgspec: names of tables and columns are strings of SQLAlchemy's own.
    return [json.dumps({"table": str(key.table), "row": dict(row)}, ensure_ascii=False) for row in found]
