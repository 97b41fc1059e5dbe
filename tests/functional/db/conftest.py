"""What tests of the queue stand on: one API database for each file, on each kind of server."""

from __future__ import annotations

import pytest

from db.sql.engine import Database
from tests.support.conductor import Queue
from tests.support.databases import database_fixture

database = database_fixture()


@pytest.fixture
def queue(database: Database) -> Queue:
    return Queue(database)
