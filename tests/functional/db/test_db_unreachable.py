"""Databases that cannot be used say so, soon, in one line, without their password."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from db.api.rows.tables import epochs
from db.sql.engine import Database
from db.sql.sync import current_version, sync_schema
from objects import errors
from tests.support.databases import SERVERS, closed_port, skip_without_driver, url_on


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
