"""Processes of a level: the API level's in the API database, a cell's conductors in the cell's. Agents: ``db/cell/services.py``.

A record is of one start of one process. It is made, renewed and judged by the database's clock alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from db.api.rows import tables as api
from db.cell import tables as cell
from db.sql import clock, dialect
from db.sql.readable import convert_readable
from objects.messages_version import SPAN
from objects.process import About, Process

Level = Literal["api", "cell"]

_TABLES: Mapping[str, sa.Table] = {"api": api.api_processes, "cell": cell.cell_processes}


def _renewal_of(table: sa.Table) -> sa.Update:
    return sa.update(table).where(table.c.uuid == sa.bindparam("of")).values(last_seen=clock.Now())


def _listing_of(table: sa.Table) -> sa.Select[Any]:
    return sa.select(table, clock.Now().label("now")).order_by(table.c.binary, table.c.host, table.c.started_at)


_RENEW = {level: _renewal_of(table) for level, table in _TABLES.items()}
_LIST = {level: _listing_of(table) for level, table in _TABLES.items()}


def record_process(tx: Connection, level: Level, process: Process) -> None:
    """Make the record of a process that has run for ``process.age`` seconds. May be repeated."""
    now = clock.read(tx)
    row = {
        "uuid": process.uuid,
        "binary": process.binary,
        "host": process.host,
        "pid": process.about.pid,
        "release": process.about.release,
        "messages": process.about.messages,
        "started_at": now - process.age,
        "last_seen": now,
    }
    dialect.insert_new(tx, _TABLES[level], [row])


def renew_process(tx: Connection, level: Level, uuid: str) -> bool:
    """A sign of life, in one statement. False: there is no record any more, as the process was taken for dead."""
    return tx.execute(_RENEW[level], {"of": uuid}).rowcount == 1


def list_all(tx: Connection, level: Level) -> list[Process]:
    """By binary, host and start."""
    return convert_readable(tx.execute(_LIST[level]), _process_from_row, _TABLES[level])


def _process_from_row(row: sa.Row[Any]) -> Process:
    return Process(
        uuid=row.uuid,
        binary=row.binary,
        host=row.host,
        about=About(release=row.release, messages=row.messages, pid=row.pid),
        started_at=row.started_at,
        last_seen=row.last_seen,
        age=max(0.0, row.now - row.last_seen),
    )


def list_older(tx: Connection, level: Level, age: float) -> list[tuple[str, str]]:
    """Binary and ``messages`` of the processes heard of within ``age`` seconds whose messages are not those of this release."""
    table = _TABLES[level]
    recent = table.c.last_seen >= clock.Now() - age
    query = sa.select(table.c.binary, table.c.messages).where(recent, table.c.messages != str(SPAN))
    return [(row.binary, row.messages) for row in tx.execute(query)]


def end_process(tx: Connection, level: Level, uuid: str) -> None:
    """The process has ended."""
    table = _TABLES[level]
    tx.execute(sa.delete(table).where(table.c.uuid == uuid))


def has_dead(level: Level) -> sa.Exists:
    """SQL condition: there are records that are older than the parameter ``records_age``, for ``forget_dead``."""
    return sa.exists().where(_TABLES[level].c.last_seen < clock.Now() - sa.bindparam("records_age"))


def forget_dead(tx: Connection, level: Level, age: float) -> int:
    """Delete the records of processes that died ``age`` seconds ago or longer; return how many."""
    table = _TABLES[level]
    return tx.execute(sa.delete(table).where(table.c.last_seen < clock.Now() - age)).rowcount
