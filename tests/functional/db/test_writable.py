"""Whether a database takes writes: full disks, files and servers that may only be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from db.sql import ready, sync
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from service import room
from tests.support.ground import Ground


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
