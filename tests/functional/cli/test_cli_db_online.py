"""``db online-migrations``: batches, a result for each database, and what the exit status says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cells import administration
from cells.administration import CellChange
from db import online
from db.cell import tables
from db.online import Migration
from db.sql.connection import Connection
from db.sql.engine import Database
from tests.support import tombstones
from tests.support.commands import Shell
from tests.support.databases import closed_port, sqlite_url


def _nameless(tx: Connection) -> int:
    query = sa.select(sa.func.count()).select_from(tables.instances).where(tables.instances.c.name == "")
    return int(tx.execute(query).scalar_one())


def _name(tx: Connection, most: int) -> int:
    uuids = tx.execute(sa.select(tables.instances.c.uuid).where(tables.instances.c.name == "").limit(most)).scalars().all()
    return tx.execute(sa.update(tables.instances).where(tables.instances.c.uuid.in_(uuids)).values(name="unnamed")).rowcount


def _broken(tx: Connection, most: int) -> int:
    raise ValueError("no such thing")


NAMES = Migration("name-servers", "cell", _nameless, _name)
BROKEN = Migration("break-servers", "cell", _nameless, _broken)


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Five servers in one cell and two in another that are to be migrated, in batches of two."""
    shell = Shell(tmp_path, capsys)
    shell.done("db sync --api")
    api = Database(sqlite_url(tmp_path, "api"))
    for name, count in (("east", 5), ("west", 2)):
        shell.done(f"cell create {name}")
        uuid = administration.find_cell(api, name).uuid
        tombstones.leave(api, Database(sqlite_url(tmp_path, name)), uuid, count, 1.0)
    monkeypatch.setattr(online, "MIGRATIONS", (NAMES,))
    monkeypatch.setattr(online, "ROWS_PER_TRANSACTION", 2)
    return shell


def rows(shell: Shell, line: str, status: int) -> dict[str, tuple[Any, ...]]:
    outcome = shell(f"{line} -f value -c Database -c Migrated -c Left -c Result")
    assert outcome.status == status, outcome
    found = [row.split(maxsplit=3) for row in outcome.out.splitlines()]
    return {name: (migrated, left, told) for name, migrated, left, told in found}


def test_the_run_after_a_complete_migration_is_empty(shell: Shell) -> None:
    assert rows(shell, "db online-migrations", 0) == {
        "api": ("0", "0", "done"),
        "east": ("5", "0", "done"),
        "west": ("2", "0", "done"),
    }
    assert {row[0] for row in rows(shell, "db online-migrations", 0).values()} == {"0"}


def test_a_bounded_run_says_that_more_remains(shell: Shell) -> None:
    more = "run it again for name-servers"
    assert rows(shell, "db online-migrations --max-count 3", 1) == {
        "api": ("0", "0", "done"),
        "east": ("3", "2", more),
        "west": ("0", "2", more),
    }
    assert rows(shell, "db online-migrations --max-count 3 --all-cells", 1) == {
        "east": ("2", "0", "done"),
        "west": ("1", "1", more),
    }
    assert rows(shell, "db online-migrations --max-count 3", 0)["west"] == ("1", "0", "done")
    assert "'0' is not a whole number from 1" in shell.refused("db online-migrations --max-count 0", status=2)


def test_a_failing_migration_does_not_stop_the_others(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "MIGRATIONS", (BROKEN, NAMES))
    found = rows(shell, "db online-migrations", 2)
    assert found["east"] == ("None", "None", "failed: break-servers: no such thing")
    monkeypatch.setattr(online, "MIGRATIONS", (NAMES,))
    assert rows(shell, "db online-migrations", 0)["east"] == ("0", "0", "done")


def test_dead_cells_and_missing_schemas_are_reported(shell: Shell) -> None:
    api = Database(sqlite_url(shell.state, "api"))
    shell.done("cell create north --no-sync")
    (shell.state / "north.db").touch()
    administration.change_cell(api, "east", CellChange(database_url=f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell"))
    found = rows(shell, "db online-migrations", 2)
    assert "cannot be used" in found["east"][2]
    assert "has no schema yet; apply it with 'superconductor db sync'" in found["north"][2]
    assert found["west"] == ("2", "0", "done")
