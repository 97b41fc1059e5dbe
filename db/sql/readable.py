"""Convert rows one by one: one that cannot be read is left out of its list, and its neighbours are there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from db.sql import dialect
from objects import errors, stored
from objects.text import FAULT_SIZE, clean_text
from service.rate_limited_log import RateLimitedLog

R = TypeVar("R")
T = TypeVar("T")

UNREADABLE = (*stored.UNREADABLE, ValueError, ArithmeticError, LookupError, AttributeError)
"""What a value that no code of ours writes may raise where it is converted."""

_COMPLAINTS = RateLimitedLog(logging.getLogger(__name__))
SHAPES_LIMIT = 1000
_SOUND: dict[tuple[sa.Table, tuple[str, ...]], set[tuple[type, ...]]] = {}
"""Types of the values of rows that were sound, by table and names: looking a row's types up costs about a microsecond."""


def convert_readable(rows: Iterable[R], convert: Callable[[R], T], describe: sa.Table | Callable[[R], str]) -> list[T]:
    """The rows as ``convert`` has them, in order, without those that it cannot read.

    ``describe``: the table whose columns the rows have, as they are called there; or the name of a row in the log.
    """
    if isinstance(describe, sa.Table):
        rows = cast("list[R]", sound_rows(cast("Iterable[sa.Row[Any]]", rows), describe))
    converted: list[T] = []
    for row in rows:
        try:
            converted.append(convert(row))
        except UNREADABLE as error:
            name = (
                describe(row)
                if not isinstance(describe, sa.Table)
                else _describe_row(cast("Any", row), describe, _last_column(row, convert))
            )
            _log_left_out(name, str(error))
    return converted


def readable_page(
    read: Callable[[str], Sequence[sa.Row[Any]]], after: str, convert: Callable[[sa.Row[Any]], T], table: sa.Table, key: str
) -> list[T]:
    """``convert_readable`` for a page of rows after the key ``after``. Of a page that cannot be read at all it reads on behind it.

    ``read``: gives the rows after a key. ``key``: the column that has the key.
    """
    while True:
        rows = read(after)
        converted = convert_readable(rows, convert, table)
        if converted or not rows:
            return converted
        after = rows[-1]._mapping[key]


def read_one(row: sa.Row[Any], convert: Callable[[sa.Row[Any]], T], table: sa.Table) -> T:
    """The row as ``convert`` has it. Raises Conflict if it cannot be read: somebody asked for this one."""
    column = odd_column(row, table) or _column_beyond_limit(row, table)
    if column is None:
        try:
            return convert(row)
        except UNREADABLE as error:
            column, reason = _last_column(row, convert), clean_text(str(error), FAULT_SIZE)
    else:
        reason = _describe_value(row, table, column)
    name = _describe_row(row, table, column)
    _log_left_out(name, reason)
    raise errors.Conflict(f"{name} cannot be read ({reason}): an operator has to correct or delete this row of the database")


def whole_row(row: R, table: sa.Table) -> R:
    """The row itself. Raises Conflict if a value is not of its column's type."""
    return read_one(cast("sa.Row[Any]", row), lambda _: row, table)


def sound_rows(rows: Iterable[Any], table: sa.Table, names: tuple[str, ...] = ()) -> list[sa.Row[Any]]:
    """The rows whose values have the types of their columns. SQLite keeps any value in any column; servers do not.

    ``names``: of the columns, where the statement calls them otherwise.
    """
    sound: list[sa.Row[Any]] = []
    for row in rows:
        if (odd := odd_column(row, table, names)) is None:
            sound.append(row)
        else:
            _log_left_out(_describe_row(row, table, odd, names), _describe_value(row, table, odd, names))
    return sound


def odd_column(row: sa.Row[Any], table: sa.Table, names: tuple[str, ...] = ()) -> str | None:
    """The first column whose value is not of its type; None: all are. Columns of other tables are not looked at."""
    names = names or tuple(row._fields)
    shapes = _SOUND.get((table, names))
    if shapes is None:
        shapes = _SOUND.setdefault((table, names), set())
    shape = tuple(map(type, row))
    if shape in shapes:
        return None
    for name, value in zip(names, row, strict=True):
        column = table.c.get(name)
        if column is not None and value is not None and not isinstance(value, _types_of(column.type)):
            return name
    if len(shapes) < SHAPES_LIMIT:
        shapes.add(shape)
    return None


def complain_of_odd(table: sa.Table, odd: str | None) -> None:
    """Log the rows of a ``dialect.OddRows``."""
    for key in dialect.json_array(odd, str):
        _log_left_out(f"{table.name} {key}", "its value is not of the column's type")


def _log_left_out(name: str, reason: str) -> None:
    """Log once in a while that the row of this name is left out."""
    name, reason = clean_text(name, FAULT_SIZE), clean_text(reason, FAULT_SIZE)
    _COMPLAINTS(name, logging.ERROR, "%s cannot be read, and is left out: %s", name, reason)


def _column_beyond_limit(row: sa.Row[Any], table: sa.Table) -> str | None:
    """The first column whose number no database server would take."""
    for name, value in zip(row._fields, row, strict=True):
        column = table.c.get(name)
        if column is not None and type(value) is int:
            is_short = isinstance(column.type, sa.Integer) and not isinstance(column.type, sa.BigInteger)
            limit = 2**31 if is_short else 2**63
            if not -limit <= value < limit:
                return str(name)
    return None


def _describe_value(row: sa.Row[Any], table: sa.Table, column: str, names: tuple[str, ...] = ()) -> str:
    value = dict(zip(names or row._fields, row, strict=True))[column]
    return f"{type(value).__name__} {clean_text(repr(value), 40)} in a column of {table.c[column].type}"


def _types_of(kind: sa.types.TypeEngine[Any]) -> tuple[type, ...]:
    """Servers give sums as decimal numbers."""
    if isinstance(kind, sa.String):
        return (str,)
    if isinstance(kind, sa.Boolean):
        return (bool,)
    return (int, Decimal) if isinstance(kind, sa.Integer) else (int, float, Decimal)


def _describe_row(row: sa.Row[Any], table: sa.Table, column: str, names: tuple[str, ...] = ()) -> str:
    """The row and its column for the log: ``ports uuid=... column tags``."""
    values = dict(zip(names or row._fields, row, strict=True))
    keys = " ".join(f"{key.name}={clean_text(str(values[key.name]), 40)}" for key in table.primary_key if key.name in values)
    return " ".join(filter(None, (table.name, keys, f"column {column}" if column else "")))


class _Traced:
    """A row that remembers the column that was read last."""

    def __init__(self, row: object) -> None:
        self._row = row
        self.last = ""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            self.last = name
        return getattr(self._row, name)


def _last_column(row: R, convert: Callable[[R], object]) -> str:
    """The column at which ``convert`` fails; empty if that is not known."""
    traced = _Traced(row)
    try:
        convert(cast("Any", traced))
    except UNREADABLE:
        return traced.last
    return ""
