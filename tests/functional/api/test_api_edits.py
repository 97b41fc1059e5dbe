"""What a tenant changes of a server over HTTP: name, description, metadata, tags and the lock."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import falcon.testing
import pytest

from db.api.projects import flavors
from objects.flavor import Flavor
from tests.support.api import IMAGE, NEWEST, OTHER_TENANT, TENANT, Front, with_status
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL
from tests.support.hostile import HOSTILE
from tests.support.transactions import run_threads

NEW = TENANT | NEWEST
ADMIN = NEWEST | {"X-Project-Id": "operators", "X-Roles": "admin"}
READER = NEW | {"X-Roles": "reader"}
CHANGED = {
    "id", "name", "links", "status", "tenant_id", "user_id", "metadata", "hostId", "image", "flavor", "created", "updated",
    "addresses", "accessIPv4", "accessIPv6", "OS-DCF:diskConfig", "progress",
}  # fmt: skip
UNKNOWN = "00000000-0000-4000-8000-000000000000"


front = front_fixture(grounds=USUAL)


@pytest.fixture
def server(front: Front) -> str:
    return front.boot("web", TENANT, metadata={"role": "web"})


def ask(front: Front, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> falcon.testing.Result:
    return front.client.simulate_request(method, f"/v2.1/servers/{path}", headers=headers or NEW, json=body)


def act(front: Front, server: str, body: Any, headers: dict[str, str] | None = None) -> falcon.testing.Result:
    return ask(front, "POST", f"{server}/action", body, headers)


def show(front: Front, server: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = with_status(ask(front, "GET", server, headers=headers), 200)
    found: dict[str, Any] = answer.json["server"]
    return found


def names(front: Front, **query: str) -> list[str]:
    answer = with_status(front.get("/v2.1/servers", NEW, **query), 200)
    return [server["name"] for server in answer.json["servers"]]


def message(answer: falcon.testing.Result) -> str:
    (fault,) = answer.json.values()
    return str(fault["message"])


# -- name and description --------------------------------------------------------------------------------------------------------


def test_the_answer_to_a_change_has_fewer_fields(front: Front, server: str) -> None:
    """For administrators, too: neither hosts nor states."""
    for version, more in (("2.1", set()), ("2.19", {"locked", "description"}), ("2.63", {"locked", "description", "tags"})):
        headers = ADMIN | {"OpenStack-API-Version": f"compute {version}"}
        answer = ask(front, "PUT", server, {"server": {"name": "db"}}, headers)
        certificates = {"trusted_image_certificates"} if version == "2.63" else set()
        assert set(answer.json["server"]) == CHANGED | more | certificates


def test_a_change_returns_all_fields_since_2_75(front: Front, server: str) -> None:
    for headers in (ADMIN, NEW):
        answer = ask(front, "PUT", server, {"server": {"name": "db"}}, headers | {"OpenStack-API-Version": "compute 2.75"})
        assert answer.json["server"] == show(front, server, headers | {"OpenStack-API-Version": "compute 2.75"})


def test_hostname_and_access_addresses_change(front: Front, server: str) -> None:
    """The hostname is for everyone since 2.90, and may have a domain since 2.94; an empty address clears it."""
    assert show(front, server)["OS-EXT-SRV-ATTR:hostname"] == "web"
    fields = {"hostname": "db.example", "accessIPv4": "192.0.2.1", "accessIPv6": "2001:0db8:0:0::0001"}
    changed = ask(front, "PUT", server, {"server": fields}).json["server"]
    assert (changed["OS-EXT-SRV-ATTR:hostname"], changed["accessIPv4"], changed["accessIPv6"]) == (
        "db.example",
        "192.0.2.1",
        "2001:db8::1",
    )
    ask(front, "PUT", server, {"server": {"accessIPv4": "", "name": "db"}}, TENANT)
    shown = show(front, server)
    assert (shown["OS-EXT-SRV-ATTR:hostname"], shown["accessIPv4"], shown["accessIPv6"]) == ("db.example", "", "2001:db8::1")
    assert "OS-EXT-SRV-ATTR:hostname" not in show(front, server, TENANT | {"OpenStack-API-Version": "compute 2.89"})


def test_a_hostname_does_not_follow_the_name(front: Front, server: str) -> None:
    ask(front, "PUT", server, {"server": {"name": "db"}})
    ask(front, "PUT", server, {"server": {"name": "cache"}})
    assert (show(front, server)["name"], show(front, server)["OS-EXT-SRV-ATTR:hostname"]) == ("cache", "web")
    ask(front, "PUT", server, {"server": {"name": "both", "hostname": "own"}})
    assert show(front, server)["OS-EXT-SRV-ATTR:hostname"] == "own"


def test_the_disk_config_is_shown_and_changes(front: Front) -> None:
    automatic = front.boot("auto", TENANT, **{"OS-DCF:diskConfig": "AUTO"})
    assert show(front, automatic)["OS-DCF:diskConfig"] == "AUTO"
    for value in ("MANUAL", "AUTO"):
        changed = ask(front, "PUT", automatic, {"server": {"OS-DCF:diskConfig": value}})
        assert (changed.status_code, changed.json["server"]["OS-DCF:diskConfig"]) == (200, value)
    front.bring_up(automatic)
    rebuilt = act(front, automatic, {"rebuild": {"imageRef": IMAGE, "OS-DCF:diskConfig": "MANUAL"}})
    assert (rebuilt.status_code, rebuilt.json["server"]["OS-DCF:diskConfig"]) == (202, "MANUAL"), rebuilt.text
    assert show(front, automatic)["OS-DCF:diskConfig"] == "MANUAL"


def test_a_resize_may_change_the_disk_config(front: Front, server: str) -> None:
    front.bring_up(server)
    front.database.write(flavors.create, Flavor(flavor_id="9", name="large", vcpus=8, memory_mb=4096, root_gb=30))
    assert act(front, server, {"resize": {"flavorRef": "9", "OS-DCF:diskConfig": "AUTO"}}).status_code == 202
    assert show(front, server)["OS-DCF:diskConfig"] == "AUTO"


def test_name_and_description_changes_return_the_server(front: Front, server: str) -> None:
    answer = ask(front, "PUT", server, {"server": {"name": "db", "description": "back end"}})
    shown = show(front, server)
    assert (answer.status_code, answer.json["server"]) == (200, {name: shown[name] for name in answer.json["server"]})
    assert (answer.json["server"]["name"], answer.json["server"]["description"]) == ("db", "back end")
    assert names(front, name="^db$", description="back") == ["db"]
    for cleared in (None, ""):
        ask(front, "PUT", server, {"server": {"description": "again"}})
        assert ask(front, "PUT", server, {"server": {"description": cleared}}).json["server"]["description"] is None
    assert show(front, server)["name"] == "db"


def test_edits_of_a_server_in_a_cell_last(front: Front, server: str) -> None:
    ask(front, "PUT", server, {"server": {"name": "db"}})
    front.hand_over()
    ask(front, "PUT", f"{server}/tags/blue")
    front.activate(server)
    front.follow_feed()
    shown = show(front, server)
    assert (shown["name"], shown["tags"], shown["status"]) == ("db", ["blue"], "ACTIVE")
    assert front.get("/v2.1/servers/detail", NEW).json["servers"][0]["tags"] == ["blue"]


@pytest.mark.parametrize(
    ("fields", "headers", "said"),
    [
        ({"accessIPv4": "::1"}, NEW, "server.accessIPv4: '::1' is not a valid ipv4 or empty"),
        ({"accessIPv6": "fe80::1%eth0"}, NEW, "server.accessIPv6"),
        ({"hostname": "a.example"}, NEW | {"OpenStack-API-Version": "compute 2.93"}, "server.hostname"),
        ({"hostname": "web"}, NEW | {"OpenStack-API-Version": "compute 2.89"}, "server.hostname: is not a field"),
        ({"hostname": "under score"}, NEW, "server.hostname"),
        ({"OS-DCF:diskConfig": "OFF"}, NEW, "server.OS-DCF:diskConfig: 'OFF' is not one of AUTO, MANUAL"),
        ({"description": "d"}, TENANT, "server.description: is not a field"),
        ({"name": ""}, NEW, "server.name: must not be empty"),
        ({"name": " a"}, NEW, "server.name"),
        ({"name": "x" * 256}, NEW, "server.name: is too long"),
        ({"name": "a\0"}, NEW, "server.name: has a control character"),
        ({"name": 7}, NEW, "server.name: 7 is not of type string"),
        ({"description": "x" * 256}, NEW, "server.description: is too long"),
    ],
)
def test_what_cannot_be_changed_is_refused_by_name(
    front: Front, server: str, fields: dict[str, Any], headers: dict[str, str], said: str
) -> None:
    answer = with_status(ask(front, "PUT", server, {"server": fields}, headers), 400)
    assert message(answer).startswith(said)


# -- metadata ---------------------------------------------------------------------------------------------------------------------


def test_metadata_is_merged_replaced_and_deleted(front: Front, server: str) -> None:
    path = f"{server}/metadata"
    assert ask(front, "GET", path).json == {"metadata": {"role": "web"}}
    merged = ask(front, "POST", path, {"metadata": {"tier": "1", "role": "db"}})
    assert (merged.status_code, merged.json) == (200, {"metadata": {"tier": "1", "role": "db"}})
    assert names(front, metadata='{"tier": "1"}') == ["web"]
    item = ask(front, "PUT", f"{path}/zone", {"meta": {"zone": "east"}})
    assert (item.status_code, item.json) == (200, {"meta": {"zone": "east"}})
    assert ask(front, "GET", f"{path}/zone").json == {"meta": {"zone": "east"}}
    assert ask(front, "DELETE", f"{path}/role").status_code == 204
    assert ask(front, "DELETE", f"{path}/role").status_code == 404
    assert ask(front, "GET", f"{path}/role").status_code == 404
    assert show(front, server)["metadata"] == {"tier": "1", "zone": "east"}
    replaced = ask(front, "PUT", path, {"metadata": {}})
    assert (replaced.status_code, replaced.json) == (200, {"metadata": {}})
    assert show(front, server)["metadata"] == {}


def test_a_server_has_at_most_128_metadata_items(front: Front, server: str) -> None:
    path = f"{server}/metadata"
    full = {f"k{number}": "v" for number in range(128)}
    assert ask(front, "PUT", path, {"metadata": full}).status_code == 200
    assert ask(front, "POST", path, {"metadata": {"k0": "w"}}).status_code == 200
    for answer in (
        ask(front, "POST", path, {"metadata": {"more": "v"}}),
        ask(front, "PUT", path, {"metadata": full | {"more": "v"}}),
        ask(front, "PUT", f"{path}/more", {"meta": {"more": "v"}}),
    ):
        assert (answer.status_code, message(answer)) == (403, "Maximum number of metadata items exceeds 128")
    assert len(show(front, server)["metadata"]) == 128


def test_a_boot_takes_no_more_than_that(front: Front) -> None:
    items = {f"k{number}": "v" for number in range(129)}
    refused = front.post({"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "metadata": items}}, TENANT)
    assert (refused.status_code, message(refused)) == (403, "Maximum number of metadata items exceeds 128")
    assert front.uuids() == []
    del items["k0"]
    assert len(show(front, front.boot("web", TENANT, metadata=items))["metadata"]) == 128


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "metadata/a", {"meta": {"b": "v"}}),
        ("PUT", "metadata/a", {"meta": {"a": "v", "b": "v"}}),
        ("PUT", "metadata/a", {"meta": {}}),
        ("PUT", "metadata/a", {"metadata": {"a": "v"}}),
        ("PUT", "metadata/a,b", {"meta": {"a,b": "v"}}),
        ("POST", "metadata", {"metadata": {"a": 1}}),
        ("POST", "metadata", {"metadata": {"": "v"}}),
        ("POST", "metadata", {"metadata": {"a": "v" * 256}}),
        ("POST", "metadata", {"metadata": {"a" * 256: "v"}}),
        ("POST", "metadata", {"metadata": {"a": "\0"}}),
        ("POST", "metadata", {"metadata": {"a": "v"}, "more": 1}),
        ("PUT", "metadata", {}),
        ("PUT", "tags", {"tags": ["a,b"]}),
        ("PUT", "tags", {"tags": [""]}),
        ("PUT", "tags", {"tags": ["a" * 61]}),
        ("PUT", "tags", {"tags": [f"t{number}" for number in range(51)]}),
        ("PUT", "tags", {"tags": "a"}),
        ("PUT", "tags", {}),
        ("PUT", f"tags/{'a' * 61}", None),
        ("PUT", "tags/a,b", None),
    ],
)
def test_metadata_and_tags_that_cannot_be_are_refused(front: Front, server: str, method: str, path: str, body: Any) -> None:
    before = show(front, server)
    assert ask(front, method, f"{server}/{path}", body).status_code == 400
    assert show(front, server) == before


# -- tags -------------------------------------------------------------------------------------------------------------------------


def test_tags_are_added_asked_for_replaced_and_deleted(front: Front, server: str) -> None:
    path = f"{server}/tags"
    assert ask(front, "GET", path).json == {"tags": []}
    added = ask(front, "PUT", f"{path}/blue")
    assert (added.status_code, added.content) == (201, b"")
    assert added.headers["Location"].endswith(f"/v2.1/servers/{path}/blue")
    assert ask(front, "PUT", f"{path}/blue").status_code == 204
    assert ask(front, "GET", f"{path}/blue").status_code == 204
    assert ask(front, "GET", f"{path}/green").status_code == 404
    assert names(front, tags="blue") == ["web"]
    replaced = ask(front, "PUT", path, {"tags": ["green", "red", "green"]})
    assert (replaced.status_code, replaced.json) == (200, {"tags": ["green", "red"]})
    assert ask(front, "DELETE", f"{path}/red").status_code == 204
    assert ask(front, "DELETE", f"{path}/red").status_code == 404
    assert ask(front, "GET", path).json == {"tags": ["green"]}
    assert (names(front, tags="blue"), names(front, tags="green")) == ([], ["web"])
    assert ask(front, "DELETE", path).status_code == 204
    assert show(front, server)["tags"] == []


def test_a_server_has_50_tags_at_most(front: Front, server: str) -> None:
    path = f"{server}/tags"
    assert ask(front, "PUT", path, {"tags": [f"t{number}" for number in range(50)]}).status_code == 200
    assert ask(front, "PUT", f"{path}/t0").status_code == 204
    assert ask(front, "PUT", f"{path}/more").status_code == 400


def test_there_are_no_tags_before_their_version(front: Front, server: str) -> None:
    old = TENANT | {"OpenStack-API-Version": "compute 2.25"}
    for method, path in (("GET", "tags"), ("PUT", "tags/a"), ("DELETE", "tags"), ("GET", "tags/a")):
        assert ask(front, method, f"{server}/{path}", headers=old).status_code == 404


def test_odd_texts_are_preserved_or_refused(front: Front, server: str) -> None:
    """In bodies and in paths."""
    for text in HOSTILE:
        described = ask(front, "PUT", server, {"server": {"description": text}})
        assert described.status_code in (200, 400)
        if described.status_code == 200:
            assert show(front, server)["description"] == text
        mapped = ask(front, "POST", f"{server}/metadata", {"metadata": {"k": text}})
        assert mapped.status_code in (200, 400)
        if mapped.status_code == 200:
            assert ask(front, "GET", f"{server}/metadata/k").json == {"meta": {"k": text}}
        tagged = ask(front, "PUT", f"{server}/tags", {"tags": [text]})
        assert tagged.status_code in (200, 400)
        if tagged.status_code == 200:
            assert ask(front, "GET", f"{server}/tags").json == {"tags": [text]}
            assert ask(front, "DELETE", f"{server}/tags/{quote(text, safe='')}").status_code == 204, repr(text)
    for body in (b'{"metadata": {"k": "\\ud800"}}', b'{"metadata": {"\\udc00": "v"}}', b'{"\\ud800": null}'):
        for path in ("metadata", "action"):
            answer = front.client.simulate_post(
                f"/v2.1/servers/{server}/{path}", headers=NEW | {"Content-Type": "application/json"}, body=body
            )
            assert answer.status_code == 400
            json.loads(answer.content)


def test_edits_at_once_all_come_to_pass(front: Front, server: str) -> None:
    def add(number: int) -> None:
        assert ask(front, "PUT", f"{server}/tags/t{number}").status_code == 201
        assert ask(front, "PUT", f"{server}/metadata/k{number}", {"meta": {f"k{number}": "v"}}).status_code == 200

    assert run_threads(8, add) == []
    shown = show(front, server)
    assert sorted(shown["tags"]) == [f"t{number}" for number in range(8)]
    assert shown["metadata"] == {"role": "web"} | {f"k{number}": "v" for number in range(8)}


# -- the lock ---------------------------------------------------------------------------------------------------------------------

CHANGES: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/metadata", {"metadata": {"a": "b"}}),
    ("PUT", "/metadata", {"metadata": {}}),
    ("PUT", "/metadata/a", {"meta": {"a": "b"}}),
    ("DELETE", "/metadata/role", None),
    ("PUT", "/tags", {"tags": ["a"]}),
    ("PUT", "/tags/a", None),
    ("DELETE", "/tags", None),
    ("DELETE", "", None),
)
"""What a lock keeps from happening."""


@pytest.mark.parametrize("holder", [NEW, ADMIN])
def test_a_locked_server_is_unchanged_until_unlocked(front: Front, server: str, holder: dict[str, str]) -> None:
    """It may be renamed and read all the same, and an administrator does what he wants."""
    answer = act(front, server, {"lock": None}, holder)
    assert (answer.status_code, answer.content) == (202, b"")
    locked = show(front, server)
    assert locked["locked"]
    for method, path, body in CHANGES:
        refused = ask(front, method, server + path, body)
        assert (refused.status_code, "is locked by" in message(refused)) == (409, True), (method, path)
    assert show(front, server) == locked
    assert ask(front, "PUT", server, {"server": {"name": "db"}}).status_code == 200
    assert ask(front, "PUT", f"{server}/tags/by-admin", headers=ADMIN).status_code == 201
    assert (names(front, locked="true"), names(front, locked="false")) == (["db"], [])
    assert names(front, locked_by="admin" if holder is ADMIN else "owner") == ["db"]

    assert act(front, server, {"unlock": None}, holder).status_code == 202
    assert not show(front, server)["locked"]
    assert ask(front, "DELETE", server).status_code == 204


def test_an_owner_cannot_open_an_administrators_lock(front: Front, server: str) -> None:
    """Nor make it his own by locking the server again. An administrator opens every lock."""
    act(front, server, {"lock": None}, ADMIN)
    assert act(front, server, {"lock": None}).status_code == 202
    assert act(front, server, {"unlock": None}).status_code == 403
    assert show(front, server)["locked"]
    assert act(front, server, {"unlock": None}, ADMIN).status_code == 202
    act(front, server, {"lock": None})
    assert act(front, server, {"unlock": None}, ADMIN).status_code == 202
    assert not show(front, server)["locked"]
    assert act(front, server, {"unlock": None}).status_code == 202, "it is unlocked, as was asked for"


def test_a_locked_server_is_deleted_by_an_administrator(front: Front, server: str) -> None:
    act(front, server, {"lock": None})
    assert ask(front, "DELETE", server, headers=ADMIN).status_code == 204


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "exactly one action"),
        ({"lock": None, "unlock": None}, "exactly one action"),
        ({"explode": None}, "There is no such action: 'explode'"),
        ({"lock": {"reason": "r"}}, "lock.reason: is not a field"),
        ({"lock": 7}, "lock: 7 is not of type"),
    ],
)
def test_a_body_names_one_action_that_there_is(front: Front, server: str, body: Any, said: str) -> None:
    answer = with_status(act(front, server, body), 400)
    assert said in message(answer)


# -- who -------------------------------------------------------------------------------------------------------------------------

EVERYTHING: tuple[tuple[str, str, Any], ...] = (
    *CHANGES[:-1],
    ("GET", "/metadata", None),
    ("GET", "/metadata/role", None),
    ("GET", "/tags", None),
    ("GET", "/tags/a", None),
    ("PUT", "", {"server": {"name": "n"}}),
    ("POST", "/action", {"lock": None}),
    ("POST", "/action", {"unlock": None}),
)


def test_missing_and_foreign_servers_are_404(front: Front, server: str) -> None:
    gone = front.boot("gone", TENANT)
    front.delete(gone, TENANT)
    before = show(front, server)
    for method, path, body in EVERYTHING:
        for uuid, headers in ((server, OTHER_TENANT | NEWEST), (gone, NEW), (UNKNOWN, NEW), ("web", NEW), (UNKNOWN, ADMIN)):
            answer = ask(front, method, uuid + path, body, headers)
            assert answer.status_code == 404, (method, path, uuid, answer.text)
    assert show(front, server) == before


def test_a_reader_reads_and_edits_nothing(front: Front, server: str) -> None:
    before = show(front, server)
    for method, path, body in EVERYTHING:
        answer = ask(front, method, server + path, body, READER)
        assert answer.status_code in ((200, 204, 404) if method == "GET" else (403,)), (method, path)
    assert show(front, server) == before
