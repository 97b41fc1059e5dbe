"""The statements that each database spells its own way."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from objects import typed

T = TypeVar("T", int, float, str)
K = TypeVar("K")

IN_LIST_SIZE = 500
"""Longest IN list used. MariaDB turns lists of 1,000 and more into a join, after which the lock order is no longer the key's."""


def split_pages(keys: Sequence[K]) -> Iterator[list[K]]:
    """Split into lists of at most ``IN_LIST_SIZE``."""
    for start in range(0, len(keys), IN_LIST_SIZE):
        yield list(keys[start : start + IN_LIST_SIZE])


def insert_new(tx: Connection, table: sa.Table, rows: list[dict[str, Any]]) -> int:
    """Insert the rows whose primary key is not there yet, leave the others as they are; return how many were inserted.

    Raises ValueError if not all rows have the same columns: those that the first one lacks would be left out.
    """
    if not rows:
        return 0
    columns = rows[0].keys()
    if any(row.keys() != columns for row in rows):
        raise ValueError(f"rows for {table.name} have different columns")
    statement: sa.Insert
    if tx.dialect.name == "sqlite":
        statement = sqlite.insert(table).on_conflict_do_nothing()
    elif tx.dialect.name == "postgresql":
        statement = postgresql.insert(table).on_conflict_do_nothing()
    else:
        statement = mysql.insert(table).prefix_with("IGNORE")
    return tx.execute(statement.execution_options(preserve_rowcount=True), rows).rowcount  # psycopg: -1 without the option


def uuids_parameter(name: str = "uuids") -> sa.BindParameter[list[str]]:
    """A bound IN list."""
    return sa.bindparam(name, expanding=True)


JSON_ARRAY_SIZE = 1000
"""Rows of which one ``JsonArray`` may be made. Of names with 255 characters it is shorter than the MiB that MariaDB allows."""


class JsonArray(FunctionElement[str]):
    """The values of a column in all rows, as the text of one JSON array; None or an empty array if there are no rows.

    Several columns of one SELECT have the same order. Drivers take rows apart in Python, so many rows with few bytes are read in a
    fraction of the time. Numbers are exact.
    """

    type = sa.Text()
    name = "json_array"
    inherit_cache = True


@compiles(JsonArray, "mysql")
@compiles(JsonArray, "mariadb")
def _mysql_array(element: JsonArray, compiler: SQLCompiler, **options: Any) -> str:
    return f"JSON_ARRAYAGG({compiler.process(element.clauses, **options)})"


@compiles(JsonArray, "postgresql")
def _postgresql_array(element: JsonArray, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST(json_agg({compiler.process(element.clauses, **options)}) AS TEXT)"


@compiles(JsonArray, "sqlite")
def _sqlite_array(element: JsonArray, compiler: SQLCompiler, **options: Any) -> str:
    values = compiler.process(element.clauses, **options)
    (column,) = element.clauses
    # of floating-point numbers it would write 15 digits
    array = f"json_group_array(json(quote({values})))" if isinstance(column.type, sa.Double) else f"json_group_array({values})"
    odd = column.table.c.get(ODD)
    return array if odd is None else f"{array} FILTER (WHERE {compiler.process(odd, **options)} IS NULL)"


ODD = "odd"
"""The label of an ``OddColumn`` in the rows of which arrays are made."""


class OddColumn(FunctionElement[str]):
    """The name of the first of some columns whose value is not of the column's type, which only SQLite allows; NULL: all are.

    With the label ``ODD`` it keeps its row out of each ``JsonArray``. ``OddRows`` names these rows.
    """

    type = sa.Text()
    name = "odd_column"
    inherit_cache = True


class OddRows(FunctionElement[str]):
    """The rows that ``JsonArray`` leaves out, as JSON: each key with the column. Its arguments: the key and the ``OddColumn``."""

    type = sa.Text()
    name = "odd_rows"
    inherit_cache = True


@compiles(OddColumn)
@compiles(OddRows)
def _nothing_odd(element: FunctionElement[str], compiler: SQLCompiler, **options: Any) -> str:
    return "NULL"


@compiles(OddColumn, "sqlite")
def _sqlite_odd_column(element: OddColumn, compiler: SQLCompiler, **options: Any) -> str:
    options.pop("within_columns_clause", None)
    cases = []
    for column in element.clauses:
        value = compiler.process(column, **options)
        odd = f"typeof({value}) NOT IN ({_storage_classes(column.type)}, 'null')"
        if isinstance(column.type, sa.Double):  # JSON has no infinite numbers
            odd += f" OR abs({value}) > 1.7e308"
        cases.append(f"WHEN {odd} THEN '{column.name}'")
    return f"CASE {' '.join(cases)} END"


def _storage_classes(kind: sa.types.TypeEngine[Any]) -> str:
    """The storage classes of SQLite that hold values of this type."""
    if isinstance(kind, sa.String):
        return "'text'"
    return "'integer'" if isinstance(kind, (sa.Integer, sa.Boolean)) else "'real', 'integer'"


@compiles(OddRows, "sqlite")
def _sqlite_odd_rows(element: OddRows, compiler: SQLCompiler, **options: Any) -> str:
    key, odd = (compiler.process(clause, **options) for clause in element.clauses)
    return f"json_group_array(quote({key}) || ' column ' || {odd}) FILTER (WHERE {odd} IS NOT NULL)"


def json_array(text: str | None, kind: type[T]) -> list[T]:
    """The values of a ``JsonArray``."""
    return typed.decode_json(text, list[kind]) if text else []  # type: ignore[valid-type]  # a type that is a value


class Upsert:
    """The statement for one table. Rows are new or not by the columns ``key``, which have a unique index.

    Of a row that is there, the columns ``replaced`` take the new values and those of ``computed`` the expression's.
    ``upsert_one`` also returns the subqueries ``beside``, as committed when it runs. It waits for no writer of their tables.
    """

    def __init__(
        self,
        table: sa.Table,
        *,
        key: Sequence[str],
        replaced: Sequence[str] = (),
        computed: Mapping[str, Any] | None = None,
        beside: Sequence[sa.Label[Any]] = (),
    ) -> None:
        computed = dict(computed or {})
        lite, post, my = sqlite.insert(table), postgresql.insert(table), mysql.insert(table)
        self._statements: dict[str, sa.Insert] = {
            "sqlite": lite.on_conflict_do_update(index_elements=key, set_={c: lite.excluded[c] for c in replaced} | computed),
            "postgresql": post.on_conflict_do_update(index_elements=key, set_={c: post.excluded[c] for c in replaced} | computed),
            "mysql": my.on_duplicate_key_update({c: my.inserted[c] for c in replaced} | computed),
        }

        singles = dict(self._statements)
        if beside:  # MariaDB reads a subquery without locks in INSERT .. SELECT, and with locks in INSERT .. VALUES
            names = [*key, *replaced, *computed]
            selected = mysql.insert(table).from_select(names, sa.select(*map(sa.bindparam, names)), include_defaults=False)
            singles["mysql"] = selected.on_duplicate_key_update({c: selected.inserted[c] for c in replaced} | computed)
        # made once: finding a new statement among the compiled ones takes longer than SQLite takes to run it
        self._returning = {name: statement.returning(*table.c, *beside) for name, statement in singles.items()}

    def __call__(self, tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Order the rows by their key: transactions that touch several then wait for each other in one direction only."""
        if rows:
            tx.execute(self._statements[tx.dialect.name], [dict(row) for row in rows])

    def upsert_one(self, tx: Connection, row: Mapping[str, Any]) -> sa.Row[Any]:
        """The same for a single row, which is returned as it is now. It stays locked until the transaction ends."""
        return tx.execute(self._returning[tx.dialect.name], dict(row)).one()


class UpdateMany:
    """``UPDATE .. SET .. WHERE key = .. AND condition`` for rows of parameters; returns how many rows were matched.

    MariaDB gets one statement for up to ``IN_LIST_SIZE`` rows, a join with their values: its driver would send one each. The
    others' drivers have a fast way of their own, so there it is ``statement``, which says the same for a single row.
    """

    def __init__(
        self, statement: sa.Update, table: sa.Table, *, key: tuple[str, str], values: Mapping[str, str], where: str
    ) -> None:
        """``key``: the column of the primary key and its parameter; ``values``: parameters by column.

        ``where``: the other conditions, with ``t.`` before columns and ``w.`` before parameters.
        """
        self._one = statement
        self._table = table.name
        self._key, self._key_value = key
        self._values = dict(values)
        self._where = where

    def __call__(self, tx: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Rows are locked in the order given."""
        if not rows:
            return 0
        if len(rows) == 1 or tx.dialect.name not in ("mysql", "mariadb"):
            return tx.execute(self._one, [dict(row) for row in rows] if len(rows) > 1 else dict(rows[0])).rowcount
        names = tuple(rows[0])
        matched = 0
        for page in split_pages(rows):
            matched += tx.exec_driver_sql(
                self._statement_text(names, len(page)), tuple(row[n] for row in page for n in names)
            ).rowcount
        return matched

    @functools.lru_cache(maxsize=512)  # noqa: B019 - made once per statement of the program, which lives as long
    def _statement_text(self, names: tuple[str, ...], rows: int) -> str:
        first = ", ".join(f"%s AS {name}" for name in names)
        other = ", ".join(["%s"] * len(names))
        values = " UNION ALL SELECT ".join([first, *([other] * (rows - 1))])
        changes = ", ".join(f"t.{column} = w.{parameter}" for column, parameter in self._values.items())
        parts = (  # the names are the table's and the program's own
            f"UPDATE (SELECT {values}) AS w",
            f"STRAIGHT_JOIN {self._table} AS t FORCE INDEX FOR JOIN (PRIMARY) ON t.{self._key} = w.{self._key_value}",
            f"SET {changes} WHERE {self._where}",
        )
        return " ".join(parts)
