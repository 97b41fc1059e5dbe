"""Servers listed from their mappings: order, pages and filters, on every server that answers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
import re2
import sqlalchemy as sa

from db.api.rows import regexes
from db.api.rows.tables import instance_mappings
from db.api.servers import listing, mappings
from db.api.servers.mappings import SORT_KEYS, ServerQuery, StateCount
from db.sql.connection import Connection
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from objects import errors
from objects.instance import Server
from objects.spec import Image, RequestSpec, ServerProperties
from tests.support import fleet
from tests.support.conductor import Queue
from tests.support.databases import database_fixture
from tests.support.fleet import CELLS

FIELDS: dict[str, Callable[[Server, RequestSpec], Any]] = {
    "display_name": lambda s, _: s.name,
    "hostname": lambda s, _: s.hostname or s.name,
    "vm_state": lambda s, _: s.state,
    "task_state": lambda s, _: _task(s),
    "power_state": lambda s, _: 1 if s.state == "active" else 0,
    "image_ref": lambda _, spec: spec.image.id if spec.image else None,
    "instance_type_id": lambda _, spec: spec.flavor.flavor_id,
    "key_name": lambda _, spec: spec.properties.key_name,
    "display_description": lambda _, spec: spec.properties.description,
    "config_drive": lambda _, spec: int(spec.properties.config_drive),
    "locked": lambda s, _: int(s.locked_by is not None),
}
"""Sort keys that are called otherwise on a server, or are its request's; all others are called the same."""

BIG = msgspec.structs.replace(fleet.flavor(4), flavor_id="big")
ASKED: tuple[tuple[int, dict[str, Any]], ...] = (
    (15, {"project_id": "p1", "image": Image(id="i1"), "properties": ServerProperties(tags=("a", "b"), metadata={"role": "web"})}),
    (10, {"project_id": "p1", "flavor": BIG, "properties": ServerProperties(key_name="K", config_drive=True)}),
    (8, {"project_id": "p2", "user_id": "u2", "image": Image(id="i2"), "properties": ServerProperties(tags=("b",), key_name="k")}),
    (7, {"project_id": "p2", "user_id": "u2", "properties": ServerProperties(
        tags=('"ü%',), metadata={"role": "web", "a.b$": "x'\\\""}, description="Übung 1")}),
)  # fmt: skip
"""How many servers, and what was asked of them."""


def _task(server: Server) -> str | None:
    if server.state != "building" or server.deleted:
        return None
    return "spawning" if server.cell_uuid else "scheduling"


database = database_fixture()


@pytest.fixture(scope="module")
def crowd(database: Database) -> dict[str, Server]:
    """Forty servers of two projects whose values tie and are missing here and there. Tests of this fixture only read."""
    queue = Queue(database)
    for count, asked in ASKED:
        queue.accept(count, **asked)
    chance = random.Random(3)
    database.write(_scatter, chance)
    return {s.uuid: s for s in database.read(mappings.list_, ServerQuery(include_deleted=True))}


def _scatter(tx: Connection, chance: random.Random) -> None:
    table = instance_mappings
    for uuid in sorted(tx.execute(sa.select(table.c.instance_uuid)).scalars()):
        values = {
            "cell_uuid": chance.choice([None, *CELLS]),
            "deleted": chance.random() < 0.25,
            "name": chance.choice(["Web", "web", "web-1", "web-10", "db", "_", "Ümläut", "a b", "a" * 254 + "!"]),
            "launch_index": chance.choice([0, 1, 10]),
            "state": chance.choice(["building", "active", "error"]),
            "host": chance.choice([None, "h1", "h10", "h2"]),
            "node": chance.choice([None, "n1", "n2"]),
            "availability_zone": chance.choice([None, "east", "west"]),
            "created_at": chance.choice([1754000000.1, 1754000000.1234567, 1754000000.1234569, 1e9 / 3]),
            "updated_at": chance.choice([1754000000.1, 1754000001.1]),
            "launched_at": chance.choice([None, 1754000000.25, 0.1 + 0.2]),
            "locked_by": chance.choice([None, "owner", "admin"]),
        }
        tx.execute(sa.update(table).where(table.c.instance_uuid == uuid).values(values))


@pytest.fixture(scope="module")
def specs(database: Database, crowd: dict[str, Server]) -> dict[str, RequestSpec]:
    return database.read(mappings.specs_by_batch, {server.batch_id for server in crowd.values()})


Specs = dict[str, RequestSpec]


def value(server: Server, key: str, specs: Specs) -> tuple[bool, Any]:
    """What is sorted by: NULL is the lowest, text goes by its bytes."""
    found = FIELDS[key](server, specs[server.batch_id]) if key in FIELDS else getattr(server, key)
    return found is not None, found.encode() if isinstance(found, str) else found or 0


def in_order(servers: Iterable[Server], sort: tuple[tuple[str, str], ...], specs: Specs) -> list[str]:
    keys = [*sort, ("uuid", sort[-1][1])] if sort else [("uuid", "asc")]
    for key, direction in reversed(keys):
        servers = sorted(servers, key=lambda s: value(s, key, specs), reverse=direction == "desc")
    return [server.uuid for server in servers]


def pages(database: Database, limit: int, **query: Any) -> list[list[str]]:
    """Page after page, each after the last server of the one before."""
    found: list[list[str]] = []
    marker: str | None = None
    while page := database.read(mappings.list_, ServerQuery(limit=limit, marker=marker, **query)):
        found.append([server.uuid for server in page])
        marker = page[-1].uuid
    return found


@pytest.mark.one_in(4)
@pytest.mark.parametrize("direction", ["asc", "desc"])
@pytest.mark.parametrize("key", sorted(SORT_KEYS))
def test_every_key_sorts_servers_without_repetition(
    database: Database, crowd: dict[str, Server], specs: Specs, key: str, direction: str
) -> None:
    sort = ((key, direction),)
    expected = in_order(crowd.values(), sort, specs)
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
        (("key_name", "desc"), ("image_ref", "asc"), ("power_state", "desc"), ("task_state", "asc")),
    ],
)
def test_several_keys_sort_one_after_the_other(
    database: Database, crowd: dict[str, Server], specs: Specs, sort: tuple[tuple[str, str], ...]
) -> None:
    found = pages(database, 4, sort=sort, include_deleted=True)
    assert [uuid for page in found for uuid in page] == in_order(crowd.values(), sort, specs)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, lambda s: not s.deleted),
        ({"project_id": "p2"}, lambda s: s.project_id == "p2" and not s.deleted),
        ({"project_id": "p3"}, lambda s: False),
        ({"phases": ("error", "building")}, lambda s: s.state in ("error", "building") and not s.deleted),
        ({"host": "h1"}, lambda s: s.host == "h1" and not s.deleted),
        ({"availability_zone": "west"}, lambda s: s.availability_zone == "west" and not s.deleted),
        ({"changed_since": 1754000000.5}, lambda s: s.updated_at > 1754000000.5 and not s.deleted),
        ({"changed_since": 1754000001.1, "include_deleted": True}, lambda s: s.updated_at == 1754000001.1),
        ({"name": "^web"}, lambda s: s.name.startswith("web") and not s.deleted),
        ({"name": "1"}, lambda s: "1" in s.name and not s.deleted),
        ({"name": "^(db|Web)$"}, lambda s: s.name in ("db", "Web") and not s.deleted),
        ({"project_id": "p1", "host": "h2", "phases": ("active",), "include_deleted": True},
         lambda s: (s.project_id, s.host, s.state, s.deleted) == ("p1", "h2", "active", False)),
        ({"phases": ("active", "deleted"), "include_deleted": True}, lambda s: s.deleted or s.state == "active"),
        ({"only_deleted": True, "user_id": "u2"}, lambda s: s.deleted and s.user_id == "u2"),
        ({"node": "n2", "launch_index": 10}, lambda s: s.node == "n2" and s.launch_index == 10 and not s.deleted),
        ({"task_states": ("scheduling",)}, lambda s: s.cell_uuid is None and s.state == "building" and not s.deleted),
        ({"task_states": ("spawning",), "phases": ("building",)},
         lambda s: s.cell_uuid and s.state == "building" and not s.deleted),
        ({"changed_before": 1754000000.5}, lambda s: s.updated_at < 1754000000.5 and not s.deleted),
    ],
)  # fmt: skip
def test_filters(database: Database, crowd: dict[str, Server], query: dict[str, Any], wanted: Callable[[Server], bool]) -> None:
    expected = {uuid for uuid, server in crowd.items() if wanted(server)}
    found = [uuid for page in pages(database, 5, **query) for uuid in page]
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"flavor_id": "big"}, (1,)),
        ({"flavor_id": "none"}, ()),
        ({"image_id": "i2"}, (2,)),
        ({"key_name": "K"}, (1,)),
        ({"config_drive": True}, (1,)),
        ({"config_drive": False}, (0, 2, 3)),
        ({"description": "^Ü.*[0-9]$"}, (3,)),
        ({"tags": ("a", "b")}, (0,)),
        ({"tags": ("b",)}, (0, 2)),
        ({"tags": ("B",)}, ()),
        ({"tags_any": ("a", '"ü%')}, (0, 3)),
        ({"not_tags": ("a", "b")}, (1, 2, 3)),
        ({"not_tags_any": ("a", "b")}, (1, 3)),
        ({"tags": ("b",), "not_tags_any": ("a",)}, (2,)),
        ({"metadata": (("role", "web"),)}, (0, 3)),
        ({"metadata": (("role", "web"), ("a.b$", "x'\\\""))}, (3,)),
        ({"metadata": (("role", "Web"),)}, ()),
    ],
)
def test_servers_match_the_requested_filters(
    database: Database, crowd: dict[str, Server], specs: Specs, query: dict[str, Any], wanted: tuple[int, ...]
) -> None:
    asked = [ASKED[number][1]["properties"] for number in wanted]
    expected = {uuid for uuid, server in crowd.items() if specs[server.batch_id].properties in asked}
    found = [uuid for page in pages(database, 5, include_deleted=True, **query) for uuid in page]
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize("sort", [(("updated_at", "asc"),), (("vm_state", "desc"), ("host", "asc")), (("key_name", "asc"),)])
def test_a_page_starts_after_its_marker(database: Database, crowd: dict[str, Server], sort: tuple[tuple[str, str], ...]) -> None:
    """Where the marker stands by now does not matter then, nor whether it is there at all."""
    whole = database.read(listing.list_page, ServerQuery(sort=sort, include_deleted=True))
    for number, (server, position) in enumerate(zip(whole.servers, whole.positions, strict=True)):
        rest = ServerQuery(sort=sort, include_deleted=True, marker=server.uuid, position=position)
        assert database.read(mappings.list_, rest) == list(whole.servers[number + 1 :])
    gone = ServerQuery(sort=sort, include_deleted=True, marker="0", position=whole.positions[0])
    assert len(database.read(mappings.list_, gone)) >= len(crowd) - 1


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", ".*.*.*.*.*.*Q", "(x+x+)+y", "([a-zA-Z]+)*!!$"])
@pytest.mark.parametrize("field", ["name", "description"])
def test_no_database_searches_for_an_expression(database: Database, crowd: dict[str, Server], pattern: str, field: str) -> None:
    """Those that some engines never finish are answered, and no statement holds them."""
    with StatementCounter() as counter:
        assert database.read(mappings.list_, ServerQuery(**{field: pattern})) == []  # type: ignore[arg-type]  # the name is a field's
    assert not [text for _, text in counter.count_by_statement() if "regexp" in text.lower() or "~" in text]


def test_a_search_over_pages_finds_servers_once(
    database: Database, crowd: dict[str, Server], specs: Specs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_FIRST_SEARCH_PAGE", 2)
    monkeypatch.setattr(listing, "_SEARCH_PAGE", 3)
    sort = (("host", "desc"), ("launched_at", "asc"))
    wanted = [server for server in crowd.values() if "web" in server.name]
    for limit in (1, 4, 1000):
        found = pages(database, limit, sort=sort, include_deleted=True, name="w(e)b")
        assert [uuid for page in found for uuid in page] == in_order(wanted, sort, specs)


@pytest.mark.parametrize("bound", ["SEARCHED_SERVERS_LIMIT", "SEARCH_TIME_S"])
def test_a_search_ends_at_its_bounds(
    database: Database, crowd: dict[str, Server], bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an answer that says how to ask for less; a search that finds a whole page before is answered."""
    monkeypatch.setattr(listing, "_FIRST_SEARCH_PAGE", 2)
    monkeypatch.setattr(listing, "_SEARCH_PAGE", 2)
    monkeypatch.setattr(listing, bound, 0)
    with pytest.raises(errors.TooCostly, match="Name a project"):
        database.read(mappings.list_, ServerQuery(name="no.server.has.it"))


PLAIN = ["web", "^web", "b$", "^web-1$", "WEB", "Ümlä", "a b", "_", "%", "-1", "^", "$", "^$", "!"]


@pytest.mark.parametrize("pattern", PLAIN)
def test_plain_text_matches_as_an_expression_would(database: Database, crowd: dict[str, Server], pattern: str) -> None:
    expected = {uuid for uuid, server in crowd.items() if re2.search(pattern, server.name)}
    listed = database.read(mappings.list_, ServerQuery(name=pattern, include_deleted=True))
    assert {server.uuid for server in listed} == expected


@pytest.mark.parametrize(
    "pattern", ["(?P<w>web)", r"\Qweb\E", r"\pL", "(?i)WEB", "[[:alpha:]]", "a{0,1000}", r"\C", "(?s).", "|", "()", r"\x{10FFFF}"]
)
def test_an_expression_means_the_same_on_every_server(database: Database, crowd: dict[str, Server], pattern: str) -> None:
    with contextlib.suppress(errors.Invalid):
        regexes.check_pattern(pattern, "name")
        expected = {uuid for uuid, server in crowd.items() if re2.search(pattern, server.name)}
        listed = database.read(mappings.list_, ServerQuery(name=pattern, include_deleted=True))
        assert {server.uuid for server in listed} == expected


def test_servers_are_found_by_their_uuids(database: Database, crowd: dict[str, Server]) -> None:
    some = tuple(sorted(crowd))[:4]
    query = ServerQuery(uuids=(*some, "unknown"), include_deleted=True, sort=(("uuid", "asc"),))
    assert database.read(mappings.list_, query) == [crowd[uuid] for uuid in some]


def test_a_known_marker_need_not_pass_filters(database: Database, crowd: dict[str, Server]) -> None:
    """A server may leave the list between two pages: changed, deleted, whatever."""
    ordered = in_order(crowd.values(), (("created_at", "desc"),), {})
    marker = next(uuid for uuid in ordered[5:] if crowd[uuid].deleted)
    behind = [uuid for uuid in ordered[ordered.index(marker) + 1 :] if not crowd[uuid].deleted]
    assert [s.uuid for s in database.read(mappings.list_, ServerQuery(marker=marker))] == behind
    for query in (ServerQuery(marker="unknown"), ServerQuery(marker=marker, project_id="p3")):
        with pytest.raises(errors.NotFound, match="marker"):
            database.read(mappings.list_, query)


def test_an_unknown_sort_key_is_invalid(database: Database) -> None:
    with pytest.raises(errors.Invalid, match="sort_key: 'flavor' is not one of availability_zone"):
        database.read(mappings.list_, ServerQuery(sort=(("flavor", "asc"),)))


def test_get_finds_deleted_servers_of_the_project(database: Database, crowd: dict[str, Server]) -> None:
    for uuid, server in crowd.items():
        assert database.read(mappings.get, uuid) == database.read(mappings.get, uuid, server.project_id) == server
        assert database.read(mappings.get, uuid, "p3") is None
    assert database.read(mappings.get, "unknown") is None


def test_counts_of_live_rows_are_by_cell_state(database: Database, crowd: dict[str, Server]) -> None:
    live = [server for server in crowd.values() if not server.deleted]
    places = {(server.cell_uuid, server.state) for server in live}
    assert set(database.read(mappings.count_by_state)) == {
        StateCount(cell_uuid=cell, state=state, count=sum((s.cell_uuid, s.state) == (cell, state) for s in live))
        for cell, state in places
    }
