"""What lists look for in request specs is kept beside them: written with each, filled in for older ones, gone with them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from db.api.reconcile import purge, repair
from db.api.rows import tables
from db.api.servers import listing
from db.api.servers.listing import ServerQuery
from db.sql.connection import ApiTransaction, Connection
from db.sql.engine import Database
from objects import stored
from objects.spec import Image, RequestSpec, ServerProperties
from tests.support import fleet
from tests.support.databases import SERVERS, database_on

TAGS = tuple(f"tag-{number}" for number in range(50))
METADATA = {"role": "web", "tier": "0"}
ODD = {"cut": "{", "a list": "[]", "no text": '{"properties": {"tags": [7]}}', "deep": '{"a":' * 3000 + "1" + "}" * 3000}


def asked(**properties: Any) -> RequestSpec:
    told: dict[str, Any] = {
        "tags": TAGS,
        "metadata": METADATA,
        "key_name": "mine",
        "config_drive": True,
        "description": "front end",
    }
    return fleet.spec(image=Image(id="debian"), properties=ServerProperties(**told | properties))


def mapping(batch: str, **changes: Any) -> dict[str, Any]:
    common = {"deleted": False, "fence": 0, "seen": 0, "project_id": "p1", "user_id": "u", "launch_index": 0}
    common |= {"created_at": 1.0, "updated_at": 1.0, "state": "active", "name": batch}
    return common | {"instance_uuid": str(uuid.uuid4()), "batch_id": batch} | changes


def batches_in(tx: Connection, table: sa.Table) -> Sequence[str]:
    return tx.execute(sa.select(table.c.batch_id)).scalars().all()


def found(database: Database, **query: Any) -> set[str]:
    """The names of the servers that a list shows."""
    return {server.name for server in database.read(listing.list_, ServerQuery(**query))}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(server: str, tmp_path: Path) -> Iterator[Database]:
    with database_on(server, tmp_path, "api") as made:
        yield made


def test_a_value_unfit_for_columns_costs_nothing_else(database: Database) -> None:
    """It comes from a cell that was written to by others: its spec is put back all the same."""
    odd = asked(tags=("ok", "a\0b", "long" * 100), metadata={"k": "\x1b", "role": "web"}, key_name="k" * 300, description="\0")
    texts = {"odd": stored.dump_value(odd), "undecodable": "{"}
    assert database.write(repair.put_back_specs, texts, 1.0) == 2
    assert database.write(repair.put_back_specs, texts, 2.0) == 0
    database.write(lambda tx: tx.execute(sa.insert(tables.instance_mappings), [mapping(batch) for batch in texts]))
    assert found(database, tags=("ok",)) == found(database, metadata=(("role", "web"),)) == {"odd"}
    assert found(database) == {"odd", "undecodable"}


def test_tags_and_metadata_go_with_their_batch(database: Database) -> None:
    kept, gone = mapping("kept"), mapping("gone", deleted=True, state="deleted", terminated_at=1.0)

    def write(tx: ApiTransaction) -> None:
        repair.put_back_specs(tx, {batch: stored.dump_value(asked()) for batch in ("kept", "gone")}, 1.0)
        tx.execute(sa.insert(tables.instance_mappings), [kept])
        tx.execute(sa.insert(tables.instance_mappings), [gone])

    database.write(write)
    assert database.write(purge.purge_servers, 2.0, []) == 1
    for table in (tables.request_specs, tables.request_tags, tables.request_metadata):
        assert set(database.read(batches_in, table)) == {"kept"}
