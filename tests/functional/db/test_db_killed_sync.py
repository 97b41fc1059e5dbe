"""Schema changes that are killed half-way: the next run finishes them, also beside another one."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from db.sql.engine import Database
from db.sql.sync import current_version, latest_version
from service.periodic import wait_until
from tests.functional.db.test_db_sync import SYNC, differences
from tests.support.databases import url_on


def tables(tx: sa.Connection) -> int:
    return len(sa.inspect(tx).get_table_names())


def has(database: Database, wanted: int) -> bool:
    return database.read(tables) >= wanted


@pytest.mark.parametrize("server", ["mariadb", "postgresql"])
def test_a_killed_run_is_finished_by_two_concurrently(server: str, tmp_path: Path) -> None:
    with url_on(server, tmp_path) as url:
        database = Database(url)
        patience = 90.0 if server == "mariadb" else 0.5  # PostgreSQL shows no table before all are there: killed at any moment
        for wanted in (2, 7, 12):
            command = [sys.executable, "-c", SYNC, url]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as killed:
                seen = wait_until(partial(has, database, wanted), patience, 0.001)
                killed.kill()
                said = killed.stderr.read() if killed.stderr else ""
            assert seen or server == "postgresql", said
        runs = [subprocess.Popen([sys.executable, "-c", SYNC, url], stderr=subprocess.PIPE, text=True) for _ in range(2)]
        for run in runs:
            _, said = run.communicate(timeout=240)
            assert run.returncode == 0, said
        assert current_version(url, "api") == latest_version("api")
        assert database.read(differences, "api") == []
        database.dispose_connections()
