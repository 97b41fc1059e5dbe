"""Values that a database takes by raw SQL, and that no code of ours can read or write: and refusals by the database itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa

from db.cell.tables import builds, instances
from db.sql.connection import Connection
from db.sql.engine import Database
from tests.support.ground import GROUNDS


class Poison(NamedTuple):
    """What is wrong with a row, and the grounds whose database lets that be written."""

    name: str
    spoil: Callable[[Connection, str], object]
    grounds: tuple[str, ...] = GROUNDS


def _build(**values: Any) -> Callable[[Connection, str], object]:
    return lambda tx, uuid: tx.execute(sa.update(builds).where(builds.c.instance_uuid == uuid).values(values))


def _row(**values: Any) -> Callable[[Connection, str], object]:
    return lambda tx, uuid: tx.execute(sa.update(instances).where(instances.c.uuid == uuid).values(values))


def _raw(column: str, value: str, table: str = "instances", key: str = "uuid") -> Callable[[Connection, str], object]:
    text = f"UPDATE {table} SET {column} = {value} WHERE {key} = :uuid"  # the test's own names
    return lambda tx, uuid: tx.execute(sa.text(text), {"uuid": uuid})


def _without_build(tx: Connection, uuid: str) -> None:
    tx.execute(sa.delete(builds).where(builds.c.instance_uuid == uuid))


_FAILURE = '{"kind": "%s", "error": "E", "message": "%s", "at": 1.0}'
_HISTORY = '[{"number": 1, "host": "h1", "node": "h1", "failure": %s}]'

OF_ROWS = [
    Poison("spec", _build(spec="{")),
    Poison("limits", _build(limits='"none"')),
    Poison("alternates", _build(alternates='[{"host": 7}]')),
    Poison("history", _build(history="[[[")),
    Poison("history of a newer release", _build(history=_HISTORY % (_FAILURE % ("meteorite", "m")))),
    Poison("history with a surrogate", _build(history=_HISTORY % (_FAILURE % ("host", r"\ud800")))),
    Poison("history with a NUL", _build(history=_HISTORY % (_FAILURE % ("host", r"\u0000")))),
    Poison("history of 200 KB", _build(history=_HISTORY % (_FAILURE % ("host", "x" * 200_000)))),
    Poison("history nested too deep", _build(history="[" * 5000)),
    Poison("no build", _without_build),
    Poison("last attempt", _row(attempt=2**31 - 1)),
    Poison("last version", _row(version=2**63 - 1)),
    Poison("no host", _row(host=None)),
    Poison("host that is no name", _row(host="a host/\n#*")),
    Poison("attempt that is text", _raw("attempt", "'many'"), ("lite",)),
    Poison("fence that is text", _raw("fence", "'high'"), ("lite",)),
    Poison("times that are text", _raw("created_at", "'then'"), ("lite",)),
    Poison("bytes that are no text", _raw("availability_zone", "CAST(X'FF41' AS TEXT)"), ("lite",)),
    Poison("node with a NUL", _raw("node", "CAST(X'4100' AS TEXT)"), ("lite",)),
    Poison("node of bytes", _raw("node", "X'FF'"), ("lite",)),
    Poison("launched at no time", _raw("launched_at", "'NaN'"), ("postgresql",)),
]
"""Of instances and their builds."""

OF_DEADLINES = [
    Poison("deadline that is text", _raw("deadline", "'soon'", "builds", "instance_uuid"), ("lite",)),
    Poison("deadline that is infinite", _raw("deadline", "'Infinity'", "builds", "instance_uuid"), ("postgresql",)),
    Poison("deadline that is no number", _raw("deadline", "'NaN'", "builds", "instance_uuid"), ("postgresql",)),
    Poison("deadline behind all time", _build(deadline=1e300)),
]

COLUMNS = {"instance_faults": "instance_uuid", "feed": "key", "instances": "uuid", "builds": "instance_uuid"}
"""Tables whose writes can be refused, and what names an instance there."""


@contextmanager
def refusal(database: Database, table: str, uuid: str, *, full_only: bool = False) -> Iterator[None]:
    """The database refuses whatever is written of this instance into a table. ``full_only``: but for an end without history."""
    column = f'NEW."{COLUMNS[table]}"' if database.dialect != "mysql" else f"NEW.`{COLUMNS[table]}`"
    condition = f"{column} = '{uuid}'" + (" AND NEW.details <> '[]'" if full_only else "")
    event = "INSERT" if table in ("instance_faults", "feed") else "UPDATE"
    make, drop = _trigger(database.dialect, table, condition, event)
    database.write(lambda tx: [tx.exec_driver_sql(text) for text in make])
    try:
        yield
    finally:
        database.write(lambda tx: [tx.exec_driver_sql(text) for text in drop])


def _trigger(dialect: str, table: str, condition: str, event: str) -> tuple[list[str], list[str]]:
    if dialect == "sqlite":
        body = f"WHEN {condition} BEGIN SELECT RAISE(ABORT, 'refused'); END"
        return [f"CREATE TRIGGER poison BEFORE {event} ON {table} {body}"], ["DROP TRIGGER poison"]
    if dialect == "postgresql":
        function = (
            f"CREATE FUNCTION poison() RETURNS trigger AS $$ BEGIN IF {condition} THEN RAISE EXCEPTION 'refused'; END IF; "
            "RETURN NEW; END $$ LANGUAGE plpgsql"
        )
        make = [function, f"CREATE TRIGGER poison BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION poison()"]
        return make, [f"DROP TRIGGER poison ON {table}", "DROP FUNCTION poison"]
    body = f"FOR EACH ROW BEGIN IF {condition} THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'; END IF; END"
    return [f"CREATE TRIGGER poison BEFORE {event} ON {table} {body}"], ["DROP TRIGGER poison"]
