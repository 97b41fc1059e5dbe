"""Servers listed from their mappings: order, pages and filters, on every server that answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from db import mappings
from db.connection import Connection
from db.engine import Database
from db.mappings import SORT_KEYS, Count, ServerQuery
from db.tables.api import instance_mappings
from objects import errors
from objects.instance import Server
from tests.support.conductor import Queue
from tests.support.databases import SERVERS, database_on
from tests.support.fleet import CELLS

FIELDS: dict[str, Callable[[Server], Any]] = {
    "display_name": lambda s: s.name,
    "vm_state": lambda s: s.state,
}
"""Sort keys that are called otherwise on a server; all others are called the same."""


@pytest.fixture(scope="module", params=SERVERS)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with database_on(request.param, tmp_path_factory.mktemp("queue"), "api") as made:
        yield made


@pytest.fixture(scope="module")
def crowd(database: Database) -> dict[str, Server]:
    """Forty servers of two projects whose values tie and are missing here and there. Tests of this fixture only read."""
    queue = Queue(database)
    queue.accept(25, project_id="p1")
    queue.accept(15, project_id="p2", user_id="u2")
    chance = random.Random(3)
    database.write(_scatter, chance)
    return {s.uuid: s for s in database.read(mappings.list_, ServerQuery(include_deleted=True))}


def _scatter(tx: Connection, chance: random.Random) -> None:
    table = instance_mappings
    for uuid in sorted(tx.execute(sa.select(table.c.instance_uuid)).scalars()):
        values = {
            "cell_uuid": chance.choice([None, *CELLS]),
            "deleted": chance.random() < 0.25,
            "name": chance.choice(["Web", "web", "web-1", "web-10", "db", "_", "Ümläut", "a b"]),
            "launch_index": chance.choice([0, 1, 10]),
            "state": chance.choice(["building", "active", "error"]),
            "host": chance.choice([None, "h1", "h10", "h2"]),
            "node": chance.choice([None, "n1", "n2"]),
            "availability_zone": chance.choice([None, "east", "west"]),
            "created_at": chance.choice([1754000000.1, 1754000000.1234567, 1754000000.1234569, 1e9 / 3]),
            "updated_at": chance.choice([1754000000.1, 1754000001.1]),
            "launched_at": chance.choice([None, 1754000000.25, 0.1 + 0.2]),
        }
        tx.execute(sa.update(table).where(table.c.instance_uuid == uuid).values(values))


def value(server: Server, key: str) -> tuple[bool, Any]:
    """What is sorted by: NULL is the lowest, text goes by its bytes."""
    found = FIELDS[key](server) if key in FIELDS else getattr(server, key)
    return found is not None, found.encode() if isinstance(found, str) else found or 0


def in_order(servers: list[Server], sort: tuple[tuple[str, str], ...]) -> list[str]:
    keys = [*sort, ("uuid", sort[-1][1])] if sort else [("uuid", "asc")]
    for key, direction in reversed(keys):
        servers = sorted(servers, key=lambda s: value(s, key), reverse=direction == "desc")
    return [server.uuid for server in servers]


def pages(database: Database, limit: int, **query: Any) -> list[list[str]]:
    """Page after page, each after the last server of the one before."""
    found: list[list[str]] = []
    marker: str | None = None
    while page := database.read(mappings.list_, ServerQuery(limit=limit, marker=marker, **query)):
        found.append([server.uuid for server in page])
        marker = page[-1].uuid
    return found


@pytest.mark.parametrize("direction", ["asc", "desc"])
@pytest.mark.parametrize("key", sorted(SORT_KEYS))
def test_every_key_sorts_and_pages_hold_each_server_once(
    database: Database, crowd: dict[str, Server], key: str, direction: str
) -> None:
    sort = ((key, direction),)
    expected = in_order(list(crowd.values()), sort)
    for limit in (3, 1000):
        found = pages(database, limit, sort=sort, include_deleted=True)
        assert [uuid for page in found for uuid in page] == expected
        assert {len(page) for page in found[:-1]} <= {limit}


@pytest.mark.parametrize(
    "sort",
    [
        (),
        (("host", "asc"), ("launched_at", "desc")),
        (("launched_at", "desc"), ("host", "desc"), ("display_name", "asc")),
        (("vm_state", "asc"), ("availability_zone", "asc"), ("created_at", "desc")),
    ],
)
def test_several_keys_sort_one_after_the_other(
    database: Database, crowd: dict[str, Server], sort: tuple[tuple[str, str], ...]
) -> None:
    found = pages(database, 4, sort=sort, include_deleted=True)
    assert [uuid for page in found for uuid in page] == in_order(list(crowd.values()), sort)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, lambda s: not s.deleted),
        ({"project_id": "p2"}, lambda s: s.project_id == "p2" and not s.deleted),
        ({"project_id": "p3"}, lambda s: False),
        ({"states": ("error", "building")}, lambda s: s.state in ("error", "building") and not s.deleted),
        ({"host": "h1"}, lambda s: s.host == "h1" and not s.deleted),
        ({"availability_zone": "west"}, lambda s: s.availability_zone == "west" and not s.deleted),
        ({"changed_since": 1754000000.5}, lambda s: s.updated_at > 1754000000.5 and not s.deleted),
        ({"changed_since": 1754000001.1, "include_deleted": True}, lambda s: s.updated_at == 1754000001.1),
        ({"name": "^web"}, lambda s: s.name.startswith("web") and not s.deleted),
        ({"name": "1"}, lambda s: "1" in s.name and not s.deleted),
        ({"name": "^(db|Web)$"}, lambda s: s.name in ("db", "Web") and not s.deleted),
        ({"project_id": "p1", "host": "h2", "states": ("active",), "include_deleted": True},
         lambda s: (s.project_id, s.host, s.state) == ("p1", "h2", "active")),
    ],
)  # fmt: skip
def test_filters(database: Database, crowd: dict[str, Server], query: dict[str, Any], wanted: Callable[[Server], bool]) -> None:
    expected = {uuid for uuid, server in crowd.items() if wanted(server)}
    found = [uuid for page in pages(database, 5, **query) for uuid in page]
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_servers_are_found_by_their_uuids(database: Database, crowd: dict[str, Server]) -> None:
    some = tuple(sorted(crowd))[:4]
    query = ServerQuery(uuids=(*some, "unknown"), include_deleted=True, sort=(("uuid", "asc"),))
    assert database.read(mappings.list_, query) == [crowd[uuid] for uuid in some]


def test_a_marker_need_not_pass_the_filters_but_must_be_known(database: Database, crowd: dict[str, Server]) -> None:
    """A server may leave the list between two pages: changed, deleted, whatever."""
    ordered = in_order(list(crowd.values()), (("created_at", "desc"),))
    marker = next(uuid for uuid in ordered[5:] if crowd[uuid].deleted)
    behind = [uuid for uuid in ordered[ordered.index(marker) + 1 :] if not crowd[uuid].deleted]
    assert [s.uuid for s in database.read(mappings.list_, ServerQuery(marker=marker))] == behind
    for query in (ServerQuery(marker="unknown"), ServerQuery(marker=marker, project_id="p3")):
        with pytest.raises(errors.NotFound, match="marker"):
            database.read(mappings.list_, query)


def test_an_unknown_sort_key_is_invalid(database: Database) -> None:
    with pytest.raises(errors.Invalid, match="sort_key: 'flavor' is not one of availability_zone"):
        database.read(mappings.list_, ServerQuery(sort=(("flavor", "asc"),)))


def test_get_finds_a_server_of_the_project_deleted_or_not(database: Database, crowd: dict[str, Server]) -> None:
    for uuid, server in crowd.items():
        assert database.read(mappings.get, uuid) == database.read(mappings.get, uuid, server.project_id) == server
        assert database.read(mappings.get, uuid, "p3") is None
    assert database.read(mappings.get, "unknown") is None


def test_counts_are_by_cell_and_state_of_what_is_not_deleted(database: Database, crowd: dict[str, Server]) -> None:
    live = [server for server in crowd.values() if not server.deleted]
    places = {(server.cell_uuid, server.state) for server in live}
    assert set(database.read(mappings.counts)) == {
        Count(cell_uuid=cell, state=state, count=sum((s.cell_uuid, s.state) == (cell, state) for s in live))
        for cell, state in places
    }
