"""What a list may cost: statements end after a few seconds, and a project lists no faster than it may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from api.opts import ApiSettings
from db.api.servers import listing
from db.sql.connection import Connection
from db.sql.engine import Database
from objects import errors
from tests.support.api import OTHER_TENANT, TENANT, Front, with_status
from tests.support.databases import SERVERS, database_on
from tests.support.fronts import front_fixture

TEN = " UNION ALL ".join(f"SELECT {n} AS n" for n in range(10))
FOREVER = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "mariadb": f"SELECT count(a0.n) FROM {', '.join(f'({TEN}) AS a{number}' for number in range(12))}",
    "postgresql": "SELECT count(*) FROM generate_series(1, 1000000000000)",
}
"""Statements that would take hours."""


@pytest.fixture(params=SERVERS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Database]]:
    with database_on(request.param, tmp_path, "api") as made:
        yield request.param, made


def test_a_statement_that_takes_too_long_ends(database: tuple[str, Database]) -> None:
    """The server ends it, nobody runs it again, and the connection goes on."""
    server, opened = database
    runs: list[int] = []

    def ask(tx: Connection, statement: str) -> int:
        runs.append(1)
        return int(tx.execute(sa.text(statement)).scalar_one())

    with pytest.raises(errors.TooCostly, match="takes too long"):
        opened.read_briefly(ask, FOREVER[server])
    assert opened.read_briefly(ask, "SELECT 7") == 7
    assert len(runs) == 2


front = front_fixture(ApiSettings(list_rate=0.001, list_burst=3))


def test_a_project_lists_no_faster_than_it_may(front: Front) -> None:
    """Short and detailed lists count together; other projects and other requests are not concerned."""
    uuid = front.boot(headers=TENANT)
    for path in ("/v2.1/servers", "/v2.1/servers/detail", "/v2.1/servers"):
        assert front.get(path, TENANT).status_code == 200
    refused = front.get("/v2.1/servers/detail", TENANT)
    assert (refused.status_code, refused.json["overLimit"]["code"]) == (429, 429)
    assert int(refused.headers["Retry-After"]) > 0
    assert front.get("/v2.1/servers", OTHER_TENANT).status_code == 200
    assert front.get(f"/v2.1/servers/{uuid}", TENANT).status_code == 200


def test_an_expensive_list_says_how_to_narrow_it(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    front.boot(headers=TENANT)
    monkeypatch.setattr(listing, "SEARCH_TIME_S", -1.0)
    answer = with_status(front.get("/v2.1/servers", TENANT, name="w.b"), 503)
    assert "Name a project" in answer.json["serviceUnavailable"]["message"]
    assert int(answer.headers["Retry-After"]) > 0
