"""Statements are counted per database, and only while someone counts."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from db.api.rows.tables import epochs
from db.sql.counting import StatementCount, StatementCounter
from db.sql.engine import Database
from tests.support.databases import api_database, sqlite_url, synced

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
