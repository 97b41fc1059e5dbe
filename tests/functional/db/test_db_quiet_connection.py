"""What a transaction costs in round trips on MariaDB, and that none of those left out was needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from pymysql.connections import Connection

from db.sql import pymysql_connection
from db.sql.engine import Database
from tests.support.databases import database_on
from tests.support.ground import Ground
from tests.support.transactions import increment, read_epoch


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with database_on("mariadb", tmp_path, "api") as made:
        yield made


def said(tx: sa.Connection) -> dict[str, int]:
    """What this connection has sent so far."""
    rows = tx.execute(sa.text("SHOW SESSION STATUS WHERE Variable_name IN ('Com_rollback', 'Com_commit', 'Com_admin_commands')"))
    return {name: int(number) for name, number in rows}


def number(tx: sa.Connection) -> int:
    return int(tx.execute(sa.text("SELECT CONNECTION_ID()")).scalar_one())


def test_reads_are_one_statement_writes_end_with_commit(database: Database) -> None:
    for run, commits in ((database.read, 0), (database.write, 1)):
        before = run(said)  # its own end is sent after it has looked
        after = run(said)

        assert after["Com_rollback"] == before["Com_rollback"]
        assert after["Com_commit"] - before["Com_commit"] == commits
    assert after["Com_admin_commands"] == before["Com_admin_commands"], "it has just answered, and was asked for a sign of life"


def test_what_a_failed_write_did_is_rolled_back(database: Database) -> None:
    def fail(tx: sa.Connection) -> None:
        increment(tx)
        raise ValueError("no")

    before = database.read(read_epoch)
    with pytest.raises(ValueError, match="no"):
        database.write(fail)

    assert database.read(read_epoch) == before


def test_a_read_sees_commits_after_the_previous_read(database: Database) -> None:
    before = database.read(read_epoch)
    connection = database.read(number)
    database.write(increment)

    assert database.read(number) == connection
    assert database.read(read_epoch) == before + 1


@pytest.mark.parametrize(("fresh", "runs"), [(60.0, 3), (0.0, 2)])
def test_a_cut_connection_costs_nobody_a_transaction(
    fresh: float, runs: int, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pymysql_connection, "ALIVE_FOR_S", fresh)
    before = database.read(read_epoch)
    tries: list[None] = []

    def cut_another(tx: sa.Connection) -> None:
        tx.execute(sa.text(f"KILL CONNECTION {database.write(number)}"))

    def counted(tx: sa.Connection) -> None:
        tries.append(None)
        increment(tx)

    database.read(cut_another)
    database.write(counted)
    database.write(counted)

    assert database.read(read_epoch) == before + 2
    assert len(tries) == runs, (
        "not asked for a sign of life, it is found dead by the first statement, and the transaction run again"
    )


@pytest.mark.parametrize(("options", "kind"), [("", pymysql_connection.QuietConnection), ("?plain_driver=true", Connection)])
def test_the_url_may_select_the_drivers_connections(options: str, kind: type, tmp_path: Path) -> None:
    ground = Ground("mariadb", tmp_path)
    database = Database(f"{ground.database('api')}{options}")
    try:
        before = database.read(read_epoch)
        database.write(increment)
        assert database.read(read_epoch) == before + 1
        assert database.read(lambda tx: type(tx.connection.driver_connection)) is kind
    finally:
        database.dispose_connections()
        ground.release()
