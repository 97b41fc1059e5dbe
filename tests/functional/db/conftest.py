"""What tests of the queue stand on: one API database for each file, on each kind of server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from db.sql.engine import Database
from tests.support.conductor import Queue
from tests.support.databases import SERVERS, database_on


@pytest.fixture(scope="module", params=SERVERS)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with database_on(request.param, tmp_path_factory.mktemp("queue"), "api") as made:
        yield made


@pytest.fixture
def queue(database: Database) -> Queue:
    return Queue(database)
