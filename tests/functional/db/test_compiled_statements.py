"""A process compiles a statement once for each kind of server, and counts statements only while someone asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from db.api.rows.tables import epochs
from db.sql.connection import Connection
from db.sql.counting import StatementCount, StatementCounter
from db.sql.engine import Database
from tests.support.databases import SERVERS, api_database, database_on, sqlite_url, synced
from tests.support.scratch import new_name


class Seven(FunctionElement[int]):
    """Notes the dialects that it is compiled for."""

    type = sa.Integer()
    name = "seven"
    inherit_cache = True
    compiled_for: ClassVar[list[str]] = []


@compiles(Seven)
def _seven(element: Seven, compiler: SQLCompiler, **options: Any) -> str:
    element.compiled_for.append(compiler.dialect.name)
    return "7"


def read_seven(tx: Connection, label: str) -> int | None:
    return tx.scalar(sa.select(Seven().label(label)))


@pytest.fixture
def label() -> str:
    """It makes the statement one that no other test has run."""
    Seven.compiled_for.clear()
    return new_name()


@pytest.mark.parametrize("server", SERVERS)
def test_databases_on_one_kind_of_server_share_it(server: str, label: str, tmp_path: Path) -> None:
    with database_on(server, tmp_path, "cell") as east, database_on(server, tmp_path, "cell") as west:
        answers = [run(read_seven, label) for database in (east, west) for run in (database.read, database.write)]
    assert answers == [7] * 4
    assert len(Seven.compiled_for) == 1


def test_each_kind_of_server_has_its_own(label: str, tmp_path: Path) -> None:
    for server in SERVERS:
        with database_on(server, tmp_path, "api") as database:
            assert database.read(read_seven, label) == 7
    assert len(set(Seven.compiled_for)) == len(SERVERS)


BUMP = sa.update(epochs).where(epochs.c.name == sa.bindparam("kind")).values(epoch=epochs.c.epoch + 1)


def test_executions_and_rows_per_database(tmp_path: Path) -> None:
    api_database(tmp_path)
    database = Database(sqlite_url(tmp_path, "api"), name="API")

    def change(tx: sa.Connection) -> None:
        tx.execute(BUMP, {"kind": "cells"})
        tx.execute(BUMP, [{"kind": "cells"}, {"kind": "hosts"}, {"kind": "flavors"}])

    database.write(change)
    with StatementCounter() as counter:
        database.write(change)
        database.read(lambda tx: tx.execute(sa.select(epochs)).all())
        other = synced(sqlite_url(tmp_path, "other"), "api")
        other.read(lambda tx: tx.execute(sa.select(epochs)).all())
        counted = counter.totals_by_database()
    database.write(change)

    assert counted["API"] == StatementCount(executions=3, rows=5)
    assert counted["other.db"].executions > 1, "the schema's statements, and one of ours"
    assert counter.totals_by_database() == counted, "nothing is counted after the end"
    assert counter.count_by_statement()[
        ("API", str(BUMP.compile(dialect=sa.make_url("sqlite://").get_dialect()())))
    ] == StatementCount(executions=2, rows=4)
    counter.reset_counts()
    assert counter.totals_by_database() == {}


def test_transactions_themselves_are_not_counted(tmp_path: Path) -> None:
    database = api_database(tmp_path)
    with StatementCounter(database) as counter:
        database.write(lambda tx: None)
        database.read(lambda tx: None)

    assert counter.totals_by_database() == {}


def test_only_the_databases_named_are_counted(tmp_path: Path) -> None:
    database, other = api_database(tmp_path), synced(sqlite_url(tmp_path, "other"), "api")
    with StatementCounter(other) as counter:
        for each in (database, other):
            each.read(lambda tx: tx.execute(sa.select(epochs)).all())

    assert counter.totals_by_database() == {"other.db": StatementCount(executions=1, rows=1)}
