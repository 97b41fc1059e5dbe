"""Schema changes: complete, repeatable, safe beside others and beside work."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext

from db.api.rows import tables as api
from db.cell import tables as cell
from db.sql import ready
from db.sql.engine import Database
from db.sql.migrations import shorthand
from db.sql.sync import Kind, current_version, first, latest_version, sync_schema, version_table
from objects import errors
from tests.support.databases import SERVERS, api_database, sqlite_url, synced, url_on

METADATA = {"api": api.metadata, "cell": cell.metadata}
KINDS: tuple[Kind, ...] = ("api", "cell")


def differences(tx: sa.Connection, kind: Kind) -> Any:
    """What Alembic would have to change to make the schema agree with its tables, the other kind's tables left out."""
    others = {version_table(k) for k in KINDS} | {
        name for k in KINDS if k != kind for name in METADATA[k].tables.keys() - METADATA[kind].tables.keys()
    }
    options = {
        "compare_type": True,
        "include_name": lambda name, type_, parents: type_ != "table" or name not in others,
    }
    return compare_metadata(MigrationContext.configure(tx, opts=options), METADATA[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server", SERVERS)
def test_migrations_and_tables_agree(server: str, kind: Kind, tmp_path: Path) -> None:
    with url_on(server, tmp_path) as url:
        assert synced(url, kind).read(differences, kind) == []


@pytest.mark.parametrize("server", SERVERS)
def test_the_comparison_notices_columns_indexes_and_constraints(server: str, tmp_path: Path) -> None:
    """Guards the test above: on a schema that does differ it must not say that all is well."""
    with url_on(server, tmp_path) as url:
        database = synced(url, "api")

        def damage(tx: sa.Connection) -> None:
            on = " ON host_mappings" if database.dialect == "mysql" else ""
            tx.execute(sa.text(f"DROP INDEX ix_host_mappings_cell_uuid{on}"))
            tx.execute(sa.text("ALTER TABLE epochs ADD COLUMN extra INTEGER"))

        database.write(damage)
        assert {difference[0] for difference in database.read(differences, "api")} == {"add_index", "remove_column"}


@pytest.mark.parametrize("server", SERVERS)
def test_sync_twice_is_sync_once(server: str, tmp_path: Path) -> None:
    with url_on(server, tmp_path) as url:
        assert sync_schema(url, "cell") == sync_schema(url, "cell") == current_version(url, "cell") == latest_version("cell")
        heads = Database(url).read(lambda tx: tx.execute(sa.select(cell.feed_head)).all())
        assert [tuple(row) for row in heads] == [(1, 0, 0)]


@pytest.mark.parametrize("server", SERVERS)
def test_both_kinds_fit_into_one_database(server: str, tmp_path: Path) -> None:
    with url_on(server, tmp_path) as url:
        sync_schema(url, "api")
        assert current_version(url, "cell") is None
        database = synced(url, "cell")
        assert [database.read(differences, kind) for kind in KINDS] == [[], []]


SYNC = "import sys; from db.sql.sync import sync_schema; print(sync_schema(sys.argv[1], 'api'))"


@pytest.mark.parametrize("server", SERVERS)
def test_several_processes_may_sync_at_once(server: str, tmp_path: Path) -> None:
    with url_on(server, tmp_path) as url:
        command = [sys.executable, "-c", SYNC, url]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
        for process in processes:
            said, error = process.communicate(timeout=120)
            assert process.returncode == 0, error
            assert said.strip() == latest_version("api")
        names = Database(url).read(lambda tx: tx.execute(sa.select(api.epochs.c.name)).scalars().all())
        assert sorted(names) == ["aggregates", "cells", "flavors", "groups", "hosts"]


def test_an_interrupted_run_without_transactional_ddl_resumes(tmp_path: Path) -> None:
    """MariaDB commits every CREATE TABLE: a killed run leaves some tables and no version."""
    with url_on("mariadb", tmp_path) as url:
        database = synced(url, "cell")

        def undo_half(tx: sa.Connection) -> None:
            for name in ("feed", "services", version_table("cell")):
                tx.execute(sa.text(f"DROP TABLE {name}"))

        database.write(undo_half)
        assert current_version(url, "cell") is None
        sync_schema(url, "cell")
        assert database.read(differences, "cell") == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server", SERVERS)
def test_a_database_older_than_revisions_is_refused_unchanged(server: str, kind: Kind, tmp_path: Path) -> None:
    with url_on(server, tmp_path) as url:
        database = synced(url, kind)
        database.write(lambda tx: tx.execute(sa.text(f"UPDATE {version_table(kind)} SET version_num = '0001'")))
        advice = f"run 'superconductor db sync' of commit .*brings it to {first(kind)}"
        for refused in (lambda: sync_schema(url, kind), lambda: ready.check_schema(database, kind)):
            with pytest.raises(errors.DatabaseUnavailable, match=advice):
                refused()
        assert current_version(url, kind) == "0001"
        assert database.read(differences, kind) == []


@pytest.mark.parametrize("server", SERVERS)
def test_the_first_revision_is_upgraded_to_the_tables(server: str, tmp_path: Path) -> None:
    """New databases run no revision: their tables come from the code."""
    with url_on(server, tmp_path) as url:
        database = synced(url, "cell")

        def go_back(tx: sa.Connection) -> None:
            for name in ("machine", "machine_name", "refused"):  # 0020
                tx.execute(sa.text(f"ALTER TABLE services DROP COLUMN {name}"))
            tx.execute(sa.text(f"UPDATE {version_table('cell')} SET version_num = '{first('cell')}'"))

        database.write(go_back)
        assert sync_schema(url, "cell") == latest_version("cell")
        assert database.read(differences, "cell") == []


@pytest.mark.parametrize("server", SERVERS)
def test_a_column_is_added_once_to_filled_tables(server: str, tmp_path: Path) -> None:
    """As a revision does that was interrupted on MariaDB and runs again."""
    with url_on(server, tmp_path) as url:
        database = synced(url, "cell")

        def revise(tx: sa.Connection) -> None:
            with Operations.context(MigrationContext.configure(tx)):
                shorthand.add_column("feed_head", shorthand.make_column("extra", sa.Integer, default=sa.text("7")))

        database.write(revise)
        database.write(revise)
        extra = sa.select(sa.table("feed_head", sa.column("extra")))
        assert database.read(lambda tx: tx.execute(extra).scalars().all()) == [7]


def test_sync_beside_work_on_sqlite(tmp_path: Path) -> None:
    """A second history is applied to a file while transactions of the first go on: they wait at most, none fails."""
    database = api_database(tmp_path)
    stop, failed = threading.Event(), []
    done = [0]

    def work() -> None:
        while not stop.is_set():
            try:
                database.write(lambda tx: tx.execute(sa.update(api.epochs).values(epoch=api.epochs.c.epoch + 1)))
            except Exception as error:  # noqa: BLE001 - returned to the test
                failed.append(error)
            done[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    command = [sys.executable, "-c", SYNC.replace("'api'", "'cell'"), sqlite_url(tmp_path, "api")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    stop.set()
    thread.join(30)

    assert failed == []
    assert done[0] > 0
    assert current_version(sqlite_url(tmp_path, "api"), "cell") == latest_version("cell")


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    sync_schema(sqlite_url(tmp_path / "a" / "b", "api"), "api")

    assert (tmp_path / "a" / "b" / "api.db").exists()
