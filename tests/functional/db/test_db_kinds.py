"""A query of one kind of database is refused on the other: by mypy, and by a database that has no such table."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.api.projects import flavors
from db.cell import services
from db.sql.engine import ApiDatabase, CellDatabase
from db.sql.sync import sync_schema
from objects import errors
from tests.support.databases import sqlite_url


def test_queries_run_on_their_own_kind_only(tmp_path: Path) -> None:
    """mypy is told to ignore the refused calls, and reports an ignore that is not needed: so it must refuse them."""
    api, cell = ApiDatabase(sqlite_url(tmp_path, "api")), CellDatabase(sqlite_url(tmp_path, "cell"))
    sync_schema(sqlite_url(tmp_path, "api"), "api")
    sync_schema(sqlite_url(tmp_path, "cell"), "cell")
    assert api.read(flavors.list_all) == []
    assert cell.read(services.list_all) == []
    with pytest.raises(errors.DatabaseUnavailable, match="has no schema"):
        api.read(services.list_all)  # type: ignore[arg-type]  # what this test is about
    with pytest.raises(errors.DatabaseUnavailable, match="has no schema"):
        cell.read(flavors.list_all)  # type: ignore[arg-type]  # what this test is about
