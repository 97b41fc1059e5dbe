"""Transactions that meet others, or lose their connection: they are run again as a whole, within bounds."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from db.api.rows.tables import epochs
from db.sql import engine, retry
from db.sql import url as urls
from db.sql.engine import Database
from objects import errors
from tests.support.databases import api_database, database_on
from tests.support.transactions import increment, lock_epoch, read_epoch, run_threads, write_epoch


def test_sqlite_locked_by_another_program_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "BUSY_TIMEOUT_S", 0)
    database = api_database(tmp_path)
    other = sqlite3.connect(tmp_path / "api.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.2, lambda: other.execute("COMMIT"))
    release.start()

    database.write(increment)

    release.join()
    assert database.read(read_epoch) == 1


def test_sqlite_locked_for_too_long_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "BUSY_TIMEOUT_S", 0)
    monkeypatch.setattr(retry, "CONFLICT_ATTEMPTS", 3)
    database = api_database(tmp_path)
    other = sqlite3.connect(tmp_path / "api.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(errors.DatabaseUnavailable, match=r"api\.db stays busy: database is locked"):
        database.write(increment)

    assert database.read(read_epoch) == 0, "readers do not wait for writers"
    other.execute("ROLLBACK")
    database.write(increment)


@pytest.mark.parametrize("server", ["mariadb", "postgresql"])
def test_both_sides_of_a_deadlock_succeed(server: str, tmp_path: Path) -> None:
    with database_on(server, tmp_path, "api") as database:
        met = threading.Barrier(2)
        orders = [("cells", "hosts"), ("hosts", "cells")]

        def work(number: int) -> None:
            first, second = orders[number]
            tries: list[int] = []

            def both(tx: sa.Connection) -> None:
                write_epoch(tx, lock_epoch(tx, first) + 1, first)
                tries.append(1)
                if len(tries) == 1:
                    met.wait(30)
                write_epoch(tx, lock_epoch(tx, second) + 1, second)

            database.write(both)

        assert run_threads(2, work) == []
        assert [database.read(read_epoch, name) for name in ("cells", "hosts")] == [2, 2]


def read_epoch_unlocked(tx: sa.Connection) -> int:
    return int(tx.execute(sa.select(epochs.c.epoch).where(epochs.c.name == "cells")).scalar_one())


def end_own_connection(tx: sa.Connection, database: Database) -> None:
    """As if the server had gone away: an administrator ends this transaction's connection."""
    if database.dialect == "mysql":
        number = tx.execute(sa.text("SELECT connection_id()")).scalar_one()
        database.read(lambda other: other.execute(sa.text(f"KILL {number}")))
    else:
        number = tx.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        database.read(lambda other: other.execute(sa.text(f"SELECT pg_terminate_backend({number}, 5000)")))


@pytest.mark.parametrize("server", ["mariadb", "postgresql"])
def test_connection_lost_in_a_transaction_runs_it_again(server: str, tmp_path: Path) -> None:
    with database_on(server, tmp_path, "api") as database:
        runs: list[int] = []

        def lose_once(tx: sa.Connection) -> None:
            runs.append(1)
            increment(tx)
            if len(runs) == 1:
                end_own_connection(tx, database)
            increment(tx)

        database.write(lose_once)

        assert len(runs) == 2
        assert database.read(read_epoch) == 2


@pytest.mark.parametrize("server", ["mariadb", "postgresql"])
def test_connection_lost_in_the_commit_is_not_repeated(server: str, tmp_path: Path) -> None:
    with database_on(server, tmp_path, "api") as database:
        runs: list[int] = []

        def lose_at_the_end(tx: sa.Connection) -> None:
            runs.append(1)
            increment(tx)
            end_own_connection(tx, database)

        with pytest.raises(errors.DatabaseUnavailable, match="lost during a commit"):
            database.write(lose_at_the_end)

        assert len(runs) == 1


FROM_NOW_ON = {"mysql": "START TRANSACTION READ ONLY", "postgresql": "SET TRANSACTION READ ONLY"}
READ_ONLY = {"mysql": "SET SESSION TRANSACTION READ ONLY", "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"}


@pytest.mark.parametrize("server", ["mariadb", "postgresql"])
def test_a_connection_refusing_writes_is_replaced(server: str, tmp_path: Path) -> None:
    """It may lead to a server that was the primary once; a new one goes where the name or the address leads by now."""
    with database_on(server, tmp_path, "api") as database:
        database.write(lambda tx: tx.execute(sa.text(READ_ONLY[database.dialect])))
        assert database.read(read_epoch_unlocked) == 0, "reads go on"
        runs: list[int] = []

        def counted(tx: sa.Connection) -> None:
            runs.append(1)
            increment(tx)

        database.write(counted)

        assert len(runs) == 2
        assert database.read(read_epoch) == 1


@pytest.mark.parametrize("server", ["mariadb", "postgresql"])
def test_a_server_refusing_writes_is_reused_after_recovery(server: str, tmp_path: Path) -> None:
    with database_on(server, tmp_path, "api") as database:

        def no_writes(tx: sa.Connection) -> None:
            tx.execute(sa.text(FROM_NOW_ON[database.dialect]))
            increment(tx)

        with pytest.raises(errors.DatabaseUnavailable, match=r"takes no writes: .*(READ ONLY|read-only).*; new connections look"):
            database.write(no_writes)

        database.write(increment)
        assert database.read(read_epoch) == 1


@pytest.mark.parametrize("server", ["mariadb", "postgresql"])
def test_servers_run_at_read_committed(server: str, tmp_path: Path) -> None:
    with database_on(server, tmp_path, "api") as database:

        def look_twice(tx: sa.Connection) -> tuple[int, int]:
            query = sa.select(epochs.c.epoch).where(epochs.c.name == "cells")
            before = tx.execute(query).scalar_one()
            run_threads(1, lambda _: database.write(increment))
            return before, tx.execute(query).scalar_one()

        assert database.read(look_twice) == (0, 1)


def test_a_write_without_a_turn_reports_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WRITE_TURN_TIMEOUT_S", 0.01)
    database = api_database(tmp_path)

    (failed,) = database.write(lambda tx: run_threads(1, lambda _: database.write(increment)))

    assert isinstance(failed, errors.DatabaseUnavailable)
    assert "is busy: no write could begin" in str(failed)
