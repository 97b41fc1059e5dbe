"""A process compiles a statement once for each kind of server, however many databases it has there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from db.sql.connection import Connection
from tests.support.databases import SERVERS, database_on
from tests.support.scratch import new_name


class Seven(FunctionElement[int]):
    """Notes the dialects that it is compiled for."""

    type = sa.Integer()
    name = "seven"
    inherit_cache = True
    compiled_for: ClassVar[list[str]] = []


@compiles(Seven)
def _seven(element: Seven, compiler: SQLCompiler, **options: Any) -> str:
    element.compiled_for.append(compiler.dialect.name)
    return "7"


def read_seven(tx: Connection, label: str) -> int | None:
    return tx.scalar(sa.select(Seven().label(label)))


@pytest.fixture
def label() -> str:
    """It makes the statement one that no other test has run."""
    Seven.compiled_for.clear()
    return new_name()


@pytest.mark.parametrize("server", SERVERS)
def test_databases_on_one_kind_of_server_share_it(server: str, label: str, tmp_path: Path) -> None:
    with database_on(server, tmp_path, "cell") as east, database_on(server, tmp_path, "cell") as west:
        answers = [run(read_seven, label) for database in (east, west) for run in (database.read, database.write)]
    assert answers == [7] * 4
    assert len(Seven.compiled_for) == 1


def test_each_kind_of_server_has_its_own(label: str, tmp_path: Path) -> None:
    for server in SERVERS:
        with database_on(server, tmp_path, "api") as database:
            assert database.read(read_seven, label) == 7
    assert len(set(Seven.compiled_for)) == len(SERVERS)
