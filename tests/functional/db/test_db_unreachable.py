"""Databases that cannot be used say so, soon, in one line, without their password; and those that take no writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from db.api.rows.tables import epochs
from db.sql import ready, sync
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase, Database
from db.sql.sync import current_version, sync_schema
from objects import errors
from service import room
from tests.support.databases import SERVERS, closed_port, skip_without_driver, url_on
from tests.support.ground import Ground


def select(tx: sa.Connection) -> None:
    tx.execute(sa.select(epochs)).all()


def refusal(url: str) -> str:
    skip_without_driver(url)
    with pytest.raises(errors.DatabaseUnavailable) as caught:
        Database(url).write(select)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("driver", ["mysql+pymysql", "postgresql+psycopg"])
def test_closed_port(driver: str) -> None:
    text = refusal(f"{driver}://nova:hunter2@127.0.0.1:{closed_port()}/api")

    assert text.startswith(f"Database {driver}://nova:***@127.0.0.1")
    assert "refused" in text
    assert "hunter2" not in text


def test_missing_file_is_named_and_not_made(tmp_path: Path) -> None:
    text = refusal(f"sqlite:///{tmp_path}/none.db")

    assert f"{tmp_path}/none.db does not exist" in text
    assert "superconductor db sync" in text
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("This is not a database, it is a text of more than a hundred bytes. " * 3)

    assert "file is not a database" in refusal(f"sqlite:///{tmp_path}/text.db")


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(errors.DatabaseUnavailable, match="cannot be created: Not a directory"):
        sync_schema(f"sqlite:///{tmp_path}/file/below/api.db", "api")


@pytest.mark.parametrize("server", SERVERS)
def test_database_without_schema_says_what_to_do(server: str, tmp_path: Path) -> None:
    with url_on(server, tmp_path) as url:
        if server == "sqlite":
            (tmp_path / Path(url).name).touch()
        assert current_version(url, "api") is None
        assert "superconductor db sync" in refusal(url)


@pytest.mark.parametrize("server", ["mariadb", "postgresql"])
def test_database_that_does_not_exist_on_its_server(server: str, tmp_path: Path) -> None:
    with url_on(server, tmp_path) as url:
        assert "no_such_database" in refusal(
            sa.make_url(url).set(database="no_such_database").render_as_string(hide_password=False)
        )


def test_password_in_a_query_is_hidden_too() -> None:
    text = refusal(f"postgresql+psycopg://nova@127.0.0.1:{closed_port()}/api?password=hunter2")

    assert "hunter2" not in text


@pytest.mark.parametrize("driver", ["mysql+mysqlconnector", "postgresql+nosuchdriver"])
def test_driver_that_is_not_installed(driver: str) -> None:
    with pytest.raises(errors.Misconfigured, match="pip install"):
        Database(f"{driver}://nova:hunter2@127.0.0.1/api").read(select)


@pytest.fixture
def database(tmp_path: Path) -> ApiDatabase:
    made = ApiDatabase(f"sqlite:///{tmp_path}/api.sqlite", name="api")
    sync.sync_schema(made.url_masked, "api")
    return made


def fill(tx: ApiTransaction) -> None:
    tx.execute(sa.text("CREATE TABLE filler (text TEXT)"))
    tx.execute(sa.text("INSERT INTO filler VALUES (hex(zeroblob(1000000)))"))


def test_a_write_without_room_is_trouble_until_success(database: ApiDatabase) -> None:
    ready.check_writable(database, "api")
    pages = database.read(lambda tx: tx.execute(sa.text("PRAGMA page_count")).scalar_one())

    def limited(tx: ApiTransaction) -> None:
        tx.execute(sa.text(f"PRAGMA max_page_count = {pages + 2}"))
        try:
            fill(tx)
        finally:
            tx.execute(sa.text("PRAGMA max_page_count = 1000000"))

    with pytest.raises(errors.StorageFull):
        database.write(limited)
    with pytest.raises(errors.StorageFull, match="free space"):
        ready.check_writable(database, "api")
    ready.check_schema(database, "api")
    database.write(lambda tx: tx.execute(sa.text("CREATE TABLE small (text TEXT)")))
    ready.check_writable(database, "api")


def test_a_refused_write_is_forgotten_after_a_while(database: ApiDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tx: ApiTransaction) -> None:
        tx.execute(sa.text("PRAGMA query_only = ON"))
        try:
            tx.execute(sa.text("CREATE TABLE one (text TEXT)"))
        finally:
            tx.execute(sa.text("PRAGMA query_only = OFF"))

    with pytest.raises(errors.ReadOnlyDatabase, match="takes no writes"):
        database.write(refuse)
    with pytest.raises(errors.ReadOnlyDatabase):
        ready.check_writable(database, "api")
    monkeypatch.setattr("db.sql.engine.REFUSED_WRITE_VALID_S", 0.0)
    ready.check_writable(database, "api")


def test_a_full_disk_is_trouble_before_a_write(database: ApiDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert room.trouble_of(str(tmp_path)) == room.trouble_of(str(tmp_path / "missing")) == ""
    monkeypatch.setattr("service.room.MIN_FREE_BYTES", 1 << 62)
    assert "is full" in room.trouble_of(str(tmp_path))
    with pytest.raises(errors.StorageFull, match="is full"):
        ready.check_writable(database, "api")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write every file")
def test_a_read_only_file_is_trouble(database: ApiDatabase, tmp_path: Path) -> None:
    (tmp_path / "api.sqlite").chmod(0o400)
    with pytest.raises(errors.ReadOnlyDatabase):
        ready.check_writable(database, "api")


@pytest.mark.parametrize("server", ["mariadb", "postgresql"])
def test_a_server_that_takes_writes_is_well(tmp_path: Path, server: str) -> None:
    ground = Ground(server, tmp_path)
    url = ground.database("api")
    sync.sync_schema(url, "api")
    database = ApiDatabase(url, name="api")
    assert database.read(ready.why_read_only) == ""
    ready.check_writable(database, "api")
    with pytest.raises(errors.ReadOnlyDatabase, match="it is a standby"):
        database.check_writable("it is a standby")
    ground.end(database.dispose_connections, ground.release)
