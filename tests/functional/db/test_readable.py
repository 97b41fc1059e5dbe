"""Rows that cannot be read: left out of lists and named in the log, and refused where one of them is asked for."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from db.api.projects import keypairs
from db.api.rows import tables
from db.sql.engine import Database
from objects import errors
from objects.keypair import KeyPair, KeyType
from tests.support.api import NEWEST, TENANT, Front
from tests.support.databases import api_database


def damage(database: Database, column: sa.Column[Any], value: object, *conditions: sa.ColumnElement[bool]) -> None:
    """Write a value as it is, whatever the type of the column."""
    raw = sa.literal(value, sa.String() if isinstance(value, str) else None)
    database.write(lambda tx: tx.execute(sa.update(column.table).where(*conditions).values({column: raw})))


@pytest.mark.parametrize(("column", "value"), [("key_type", "weird"), ("public_key", b"\xff")])
def test_the_log_names_table_key_and_column(tmp_path: Path, caplog: pytest.LogCaptureFixture, column: str, value: object) -> None:
    database = api_database(tmp_path)
    for name in ("bad", "good"):
        pair = KeyPair(user_id="u", name=name, key_type=KeyType.SSH, fingerprint="f", public_key="k", created_at=1.0)
        database.write(keypairs.create, pair)
    damage(database, tables.keypairs.c[column], value, tables.keypairs.c.name == "bad")
    with caplog.at_level(logging.ERROR, "db.sql.readable"):
        assert [pair.name for pair in database.read(keypairs.list_page, "u")] == ["good"]
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"keypairs id=1 column {column} cannot be read, and is left out: ")
    with pytest.raises(errors.Conflict, match=f"^keypairs id=1 column {column} cannot be read .* correct or delete this row"):
        database.read(keypairs.get, "u", "bad")
    database.dispose_connections()


def test_a_page_of_servers_skips_unreadable_rows(tmp_path: Path) -> None:
    front = Front(tmp_path)
    oldest, bad, newest = (front.boot(name, TENANT) for name in ("oldest", "bad", "newest"))
    damage(front.database, tables.instance_mappings.c.seen, "weird", tables.instance_mappings.c.instance_uuid == bad)
    first = front.get("/v2.1/servers", TENANT | NEWEST, limit="1").json
    assert [server["id"] for server in first["servers"]] == [newest]
    following = front.get("/v2.1/servers", TENANT | NEWEST, limit="1", marker=newest).json
    assert [server["id"] for server in following["servers"]] == [oldest]
    refused = front.get(f"/v2.1/servers/{bad}", TENANT | NEWEST)
    assert (refused.status_code, "instance_mappings" in refused.text, "column seen" in refused.text) == (409, True, True)
    front.close()
