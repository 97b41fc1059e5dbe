"""A database of the first release, with rows in it, is brought up to date: its readable user data goes, all else stays."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from db import secrets
from db.sql.connection import Connection
from db.sql.engine import Database
from db.sql.sync import Kind, current, latest, sync
from objects import stored
from objects.spec import RequestSpec
from tests.support import fleet
from tests.support.databases import SERVERS, url_on

MARK = "bWFya2Vk"
BATCHES = 450
"""More than two pages of what the migration rewrites at a time."""


def old_spec(batch: str, user_data: str | None) -> str:
    """As the first release stored it."""
    spec = msgspec.to_builtins(fleet.spec(batch_id=batch, name="é ü"))
    del spec["has_secrets"]
    spec["properties"] |= {"user_data": user_data, "metadata": {"about": 'a "user_data":null story'}}
    return json.dumps(spec, separators=(",", ":"), ensure_ascii=False)


def fill(tx: Connection, kind: Kind) -> None:
    specs = {f"b{n:03}": old_spec(f"b{n:03}", MARK if n % 3 else None) for n in range(BATCHES)}
    if kind == "api":
        insert = sa.text("INSERT INTO request_specs (batch_id, spec, created_at) VALUES (:batch, :spec, 1.0)")
    else:
        insert = sa.text(
            "INSERT INTO builds (instance_uuid, spec, alternates, max_attempts, history, deadline, has_group, sent_at)"
            " VALUES (:batch, :spec, '[]', 3, '[]', 1.0, :no, 0.0)"
        )
    tx.execute(insert, [{"batch": batch, "spec": spec, "no": False} for batch, spec in specs.items()])


def read(tx: Connection, kind: Kind) -> dict[str, str]:
    table, key = ("request_specs", "batch_id") if kind == "api" else ("builds", "instance_uuid")
    return {row[0]: row[1] for row in tx.execute(sa.text(f"SELECT {key}, spec FROM {table}"))}


@pytest.mark.parametrize("kind", ["api", "cell"])
@pytest.mark.parametrize("server", SERVERS)
def test_a_database_of_the_first_release_is_upgraded_with_its_rows(server: str, kind: Kind, tmp_path: Path) -> None:
    with url_on(server, tmp_path) as url:
        sync(url, kind, "0001")
        assert current(url, kind) == "0001"
        database = Database(url)
        database.write(fill, kind)
        before = database.read(read, kind)
        assert sum(MARK in text for text in before.values()) == BATCHES * 2 // 3
        assert sync(url, kind) == latest(kind)
        after = database.read(read, kind)
        assert before.keys() == after.keys()
        for batch, text in after.items():
            assert MARK not in text
            was = json.loads(before[batch])
            was["properties"].pop("user_data")
            now = json.loads(text)
            now["properties"].pop("user_data", None)
            assert now == was
            assert stored.load(text, RequestSpec).batch_id == batch
        if kind == "api":
            assert database.read(secrets.decided) == []
        else:
            assert database.read(secrets.finished) == []
        database.dispose()
