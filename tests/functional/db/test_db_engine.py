"""Transactions on real databases: none is lost, none half done, whoever else is writing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from db.api.rows.tables import request_specs
from db.sql.engine import Database, DuplicateEntry, NestedWrite, WriteInRead
from objects import errors
from service.periodic import wait_until
from tests.support.databases import api_database, cell_database, database_fixture, database_on, sqlite_url
from tests.support.transactions import increment, read_epoch, run_threads, write_epoch

database = database_fixture(scope="function")


def test_no_update_is_lost_between_threads(database: Database) -> None:
    def work(number: int) -> None:
        for _ in range(30):
            database.write(increment)

    assert run_threads(6, work) == []
    assert database.read(read_epoch) == 180


def test_two_objects_for_one_file_share_its_turns(tmp_path: Path) -> None:
    first = api_database(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    databases = [first, Database(sqlite_url(tmp_path / "link", "api"))]

    def work(number: int) -> None:
        for _ in range(50):
            databases[number % 2].write(increment)

    assert run_threads(4, work) == []
    assert first.read(read_epoch) == 200
    with pytest.raises(NestedWrite):
        databases[0].write(lambda tx: databases[1].write(increment))


INCREMENT_MANY = """
import sys
from db.sql.engine import Database
from tests.support.transactions import increment, run_threads

def work(number):
    for _ in range(60):
        database.write(increment)

database = Database(sys.argv[1])
failed = run_threads(2, work)
sys.exit(f"failed: {failed}" if failed else 0)
"""


def test_no_update_is_lost_between_processes_on_sqlite(tmp_path: Path) -> None:
    database = api_database(tmp_path)
    command = [sys.executable, "-c", INCREMENT_MANY, sqlite_url(tmp_path, "api")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said

    assert database.read(read_epoch) == 3 * 2 * 60


WRITE_FOR_EVER = """
import sys
from db.sql.engine import Database
from tests.support.transactions import increment

database = Database(sys.argv[1])
while True:
    database.write(increment)
    print("committed", flush=True)
"""


def test_a_killed_process_leaves_commits_but_no_locks(tmp_path: Path) -> None:
    database = api_database(tmp_path)
    command = [sys.executable, "-c", WRITE_FOR_EVER, sqlite_url(tmp_path, "api")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(50):
            assert process.stdout.readline() == "committed\n"
        os.kill(process.pid, signal.SIGKILL)
        committed = 50 + process.stdout.read().count("committed\n")

    assert database.read(read_epoch) in (committed, committed + 1), "the last commit may not have been told"
    database.write(increment)


def test_what_fails_is_rolled_back(database: Database) -> None:
    def fail(tx: sa.Connection) -> None:
        write_epoch(tx, 7)
        raise errors.Conflict("no")

    with pytest.raises(errors.Conflict, match="no"):
        database.write(fail)

    assert database.read(read_epoch) == 0
    database.write(increment)


def test_a_write_in_a_read_is_refused(database: Database) -> None:
    for _ in range(2):
        with pytest.raises(WriteInRead):
            database.read(write_epoch, 7)

    assert database.read(read_epoch) == 0
    database.write(increment)


def test_write_inside_a_write_is_refused_without_hanging(database: Database) -> None:
    def nested(tx: sa.Connection) -> None:
        write_epoch(tx, 7)
        database.write(increment)

    with pytest.raises(NestedWrite, match="inside another one"):
        database.write(nested)

    assert database.read(read_epoch) == 0
    database.write(increment)


def test_write_inside_another_databases_write_is_allowed(tmp_path: Path) -> None:
    api, other = api_database(tmp_path), api_database(tmp_path, "other")

    api.write(lambda tx: other.write(increment))

    assert other.read(read_epoch) == 1


def test_read_inside_a_write_sees_what_is_committed(tmp_path: Path) -> None:
    database = api_database(tmp_path)

    def look_aside(tx: sa.Connection) -> int:
        write_epoch(tx, 7)
        return database.read(read_epoch)

    assert database.write(look_aside) == 0


def test_duplicate_key_is_reported_without_its_parameters(database: Database) -> None:
    row = {"batch_id": "b", "spec": "user data: hunter2", "created_at": 1.0}

    def insert(tx: sa.Connection) -> None:
        tx.execute(sa.insert(request_specs), row)

    database.write(insert)
    with pytest.raises(DuplicateEntry) as caught:
        database.write(insert)
    assert "hunter2" not in str(caught.value)


# -- settings --------------------------------------------------------------------------------------------------------------


def pragmas(tx: sa.Connection) -> list[object]:
    return [tx.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous", "foreign_keys")]


def test_sqlite_is_told_what_it_needs(tmp_path: Path) -> None:
    database = cell_database(tmp_path)

    assert database.read(pragmas) == ["wal", 1, 1]
    assert Database(sqlite_url(tmp_path, "cell1") + "?synchronous=FULL").read(pragmas) == ["wal", 2, 1]


@pytest.mark.parametrize(
    ("server", "query"),
    [("mariadb", "SELECT @@idle_transaction_timeout"), ("postgresql", "SHOW idle_in_transaction_session_timeout")],
)
def test_servers_end_transactions_that_say_nothing(server: str, query: str, tmp_path: Path) -> None:
    """A machine that vanished must not hold row locks for as long as TCP takes to notice."""
    with database_on(server, tmp_path, "api") as database:
        assert str(database.read(lambda tx: tx.execute(sa.text(query)).scalar())) in ("60", "1min")


def test_connections_are_kept(tmp_path: Path) -> None:
    database = api_database(tmp_path)

    assert len({database.read(lambda tx: id(tx.connection.driver_connection)) for _ in range(10)}) == 1


def test_nothing_is_opened_before_the_first_transaction(tmp_path: Path) -> None:
    database = Database(sqlite_url(tmp_path, "none"), create=True)

    assert list(tmp_path.iterdir()) == []
    database.read(lambda tx: None)
    assert (tmp_path / "none.db").exists()


def test_a_connection_used_during_disposal_is_not_reused(tmp_path: Path) -> None:
    database = api_database(tmp_path)
    seen: list[object] = []

    def look(tx: sa.Connection) -> None:
        seen.append(tx.connection.driver_connection)

    def look_and_dispose(tx: sa.Connection) -> None:
        look(tx)
        database.dispose_connections()

    database.read(look_and_dispose)
    database.read(look)
    assert seen[0] is not seen[1]


def test_disposed_database_opens_again(tmp_path: Path) -> None:
    database = api_database(tmp_path)
    database.write(increment)
    database.dispose_connections()

    assert not wait_until(lambda: bool(open_files(tmp_path)), timeout=0)
    database.write(increment)
    assert database.read(read_epoch) == 2


def open_files(folder: Path) -> list[str]:
    links = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return [link for link in links if link.startswith(str(folder))]
