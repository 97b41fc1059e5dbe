"""What is the same for every request: versions, ids, identity, the form of errors."""

from __future__ import annotations

import json
import logging
import re
import warnings
from pathlib import Path

import falcon.testing
import pytest

from api.http.microversions import MAXIMUM, format_version
from api.http.not_served import ROUTES, SERVER_ACTIONS
from api.legacy.extensions import EXTENSIONS
from api.main import build_app
from api.opts import ApiSettings
from db.sql.engine import Database
from tests.support.api import IMAGE, TENANT, Front, with_status


def test_clients_find_the_versions(front: Front) -> None:
    """At the root, at each version with or without a slash, and an identity document for those who ask for one."""
    legacy, version = front.get("/").json["versions"]
    assert (legacy["id"], legacy["status"], legacy["min_version"], legacy["version"]) == ("v2.0", "SUPPORTED", "", "")
    newest = format_version(MAXIMUM)
    assert (version["id"], version["status"], version["min_version"], version["version"]) == ("v2.1", "CURRENT", "2.1", newest)
    assert version["links"] == [{"rel": "self", "href": "http://falconframework.org/v2.1/"}]
    for path in ("/v2.1", "/v2.1/", "/v2.1/versions/v2.1"):
        assert front.get(path).json["version"] == version | {"media-types": [media("2.1")]}
    for path in ("/v2", "/v2/", "/v2.1/versions/v2.0"):
        assert front.get(path).json["version"] == legacy | {"media-types": [media("2")]}
    assert front.get("/v2.1/versions/v3").status_code == 404
    choices = with_status(front.get("/v2.0"), 300)
    assert [(each["id"], each["media-types"]) for each in choices.json["choices"]] == [
        ("v2.0", [media("2")]),
        ("v2.1", [media("2.1")]),
    ]
    for path in ("/identity/v3", "/identity/v3/"):
        assert front.get(path).json["version"]["id"].startswith("v3")


def media(version: str) -> dict[str, str]:
    return {"base": "application/json", "type": f"application/vnd.openstack.compute+json;version={version}"}


def test_a_head_has_the_headers_of_a_get(front: Front) -> None:
    for path in ("/", "/v2.1", "/v2.1/servers"):
        answer = front.client.simulate_head(path)
        assert (answer.status_code, answer.text) == (200, "")
        assert answer.headers["content-type"] == "application/json"


def test_the_legacy_version_is_2_1(front: Front) -> None:
    """Whatever the headers select."""
    uuid = front.boot(headers=TENANT)
    for path in (f"/v2/servers/{uuid}", f"/v2/p1/servers/{uuid}"):
        answer = front.get(path, TENANT | {"OpenStack-API-Version": "compute 2.53"})
        assert answer.json == front.get(f"/v2.1{path.removeprefix('/v2')}", TENANT).json


def test_the_compute_media_type_is_json(front: Front) -> None:
    """Clients may send it, and get it if they prefer it, in errors too."""
    vendor = "application/vnd.openstack.compute+json"
    server = {"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE}}
    answer = front.client.simulate_post("/v2.1/servers", headers=TENANT | {"Content-Type": vendor}, body=json.dumps(server))
    assert (answer.status_code, answer.headers["content-type"]) == (202, "application/json")
    for accept, expected in (
        (vendor, vendor),
        (f"{vendor};q=0.5, application/json", "application/json"),
        (f"application/json;q=0.1, {vendor}", vendor),
        (f"{vendor};q=x", "application/json"),
        ("text/html", "application/json"),
    ):
        for path in ("/v2.1/servers", "/v2.1/servers/nobody"):
            answer = front.get(path, TENANT | {"Accept": accept})
            assert answer.headers["content-type"] == expected
            assert answer.json


def test_extensions_are_what_is_served(front: Front) -> None:
    listed = {each["alias"]: each for each in front.get("/v2.1/extensions", TENANT).json["extensions"]}
    assert {"os-keypairs", "os-lock-server", "OS-SCH-HNT"} < listed.keys()
    assert not {"os-volumes", "os-baremetal-nodes"} & listed.keys()
    assert front.get("/v2.1/extensions/os-keypairs", TENANT).json == {"extension": listed["os-keypairs"]}
    assert front.get("/v2.1/extensions/os-volumes", TENANT).status_code == 404


def test_what_extensions_need_is_in_the_table() -> None:
    for extension in EXTENSIONS:
        if extension.needs.startswith("action "):
            assert extension.needs.removeprefix("action ") in SERVER_ACTIONS
        elif extension.needs:
            assert tuple(extension.needs.split(" ")) in ROUTES


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        ({}, "2.1"),
        ({"OpenStack-API-Version": "compute 2.30"}, "2.30"),
        ({"X-OpenStack-Nova-API-Version": "2.53"}, "2.53"),
        ({"OpenStack-API-Version": "compute latest"}, format_version(MAXIMUM)),
        ({"OpenStack-API-Version": "compute 2.30", "X-OpenStack-Nova-API-Version": "2.53"}, "2.30"),
    ],
)
def test_the_version_is_echoed_in_both_headers(front: Front, headers: dict[str, str], version: str) -> None:
    """So that a client knows what it got, and a cache what it keeps; in errors too."""
    for path in ("/v2.1/servers", "/v2.1/servers/nobody"):
        answer = front.get(path, headers)
        assert answer.headers["openstack-api-version"] == f"compute {version}"
        assert answer.headers["x-openstack-nova-api-version"] == version
        assert answer.headers["vary"] == "OpenStack-API-Version, X-OpenStack-Nova-API-Version"


def test_unserved_versions_are_406_and_malformed_ones_400(front: Front) -> None:
    """Telling which ones are served."""
    newer = with_status(front.get("/v2.1/servers", {"OpenStack-API-Version": "compute 2.999"}), 406)
    assert f"maximum is {format_version(MAXIMUM)}" in newer.json["computeFault"]["message"]
    malformed = with_status(front.get("/v2.1/servers", {"X-OpenStack-Nova-API-Version": "two"}), 400)
    assert malformed.json["badRequest"]["message"].startswith("OpenStack-API-Version: ")


def test_version_documents_ignore_the_requested_version(front: Front) -> None:
    for path in ("/v2.1", "/v2.1/"):
        assert front.get(path, {"OpenStack-API-Version": "compute 2.999"}).status_code == 200


def test_every_answer_has_its_request_id(front: Front) -> None:
    """Errors most of all."""
    seen = set()
    for path in ("/", "/v2.1/servers", "/v2.1/servers/nobody", "/nowhere"):
        headers = front.get(path).headers
        assert re.fullmatch("req-[0-9a-f-]{36}", headers["x-openstack-request-id"])
        assert headers["x-compute-request-id"] == headers["x-openstack-request-id"]
        seen.add(headers["x-openstack-request-id"])
    assert len(seen) == 4


def test_unknown_paths_and_methods_return_formatted_errors(front: Front) -> None:
    """404 and 405."""
    for path in ("/v2.1/os-anything", "/v2.1/p1/os-anything", "/v3", "/v2.1/servers/x/y/z", "/os-volumes"):
        answer = front.get(path)
        assert (answer.status_code, answer.json["itemNotFound"]["code"]) == (404, 404)
    for method in ("PUT", "BREW"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the test client, for a method that HTTP does not have
            answer = front.client.simulate_request(method, "/v2.1/servers")
        assert (answer.status_code, answer.json["badMethod"]["code"]) == (405, 405)


def test_the_project_comes_from_path_or_header(front: Front) -> None:
    """Both must agree; neither means the default."""
    uuid = front.boot(headers=TENANT)
    for answer in (
        front.get(f"/v2.1/p1/servers/{uuid}", {"X-Roles": "member"}),
        front.get(f"/v2.1/p1/servers/{uuid}", TENANT),
        front.get(f"/v2.1/servers/{uuid}", TENANT | {"X-Auth-Token": "whatever"}),
    ):
        assert answer.json["server"]["tenant_id"] == "p1"
    assert front.get(f"/v2.1/p2/servers/{uuid}", {"X-Roles": "member"}).status_code == 404
    assert front.get("/v2.1/p2/servers", TENANT).json["badRequest"]["message"].startswith("X-Project-Id: ")
    for bad in ("a b", "a/b", "x" * 256):
        assert front.get("/v2.1/servers", {"X-Project-Id": bad}).status_code == 400


@pytest.mark.parametrize(
    ("roles", "admin"), [(None, True), ("admin", True), ("member, Admin", True), ("member", False), ("", False)]
)
def test_who_sends_roles_without_admin_is_none(front: Front, roles: str | None, admin: bool) -> None:
    """And who sends none at all is one: nobody is authenticated here."""
    answer = front.get("/v2.1/superconductor/status", None if roles is None else {"X-Roles": roles})
    assert answer.status_code == (200 if admin else 403)


def test_an_unexpected_error_shows_only_its_request_id(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the rest, under that id."""

    class Broken:
        def on_get(self, *_: object) -> None:
            raise RuntimeError("secret detail")

    front.app.add_route("/v2.1/superconductor/broken", Broken())
    with caplog.at_level(logging.ERROR):
        answer = front.get("/v2.1/superconductor/broken")
    assert answer.status_code == 500
    assert answer.json["computeFault"]["code"] == 500
    assert "secret" not in answer.text
    assert answer.headers["x-openstack-request-id"] in caplog.text
    assert "secret detail" in caplog.text


def test_an_unreachable_database_is_503_without_its_address(front: Front, tmp_path: Path) -> None:
    """Whoever asks may try again; where the database is, is not told."""
    away = Database(f"sqlite:///{tmp_path}/missing/api.db")
    client = falcon.testing.TestClient(build_app(front.settings, front.registry, away, front.bus))
    for answer in (client.simulate_get("/v2.1/servers"), client.simulate_get("/v2.1/flavors")):
        assert (answer.status_code, answer.json["serviceUnavailable"]["code"]) == (503, 503)
        assert int(answer.headers["Retry-After"]) > 0
        assert str(tmp_path) not in answer.text


def test_an_absent_database_is_logged_once(front: Front, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    away = Database(f"sqlite:///{tmp_path}/missing/api.db")
    client = falcon.testing.TestClient(build_app(front.settings, front.registry, away, front.bus))
    for _ in range(20):
        assert client.simulate_get("/v2.1/servers").status_code == 503
    [record] = [each for each in caplog.records if each.name == "api.http.faults"]
    assert "missing/api.db does not exist" in record.getMessage()
    assert record.exc_info is None


def test_other_machines_are_turned_away(front: Front) -> None:
    """Whatever server runs the application; unless that was allowed by name."""
    assert front.client.simulate_get("/v2.1/servers", remote_addr="127.0.0.2").status_code == 200
    assert front.client.simulate_get("/v2.1/servers", remote_addr="::1").status_code == 200
    assert front.client.simulate_get("/v2.1/servers", remote_addr="192.0.2.1").status_code == 403
    anywhere = build_app(ApiSettings(noauth_anywhere=True), front.registry, front.database, front.bus)
    assert falcon.testing.TestClient(anywhere).simulate_get("/v2.1/servers", remote_addr="192.0.2.1").status_code == 200


def test_links_can_name_a_public_endpoint(front: Front) -> None:
    """Behind a proxy the address of the request is not the one clients use."""
    app = build_app(
        ApiSettings(public_endpoint="https://cloud.example/", noauth_anywhere=True), front.registry, front.database, front.bus
    )
    versions = falcon.testing.TestClient(app).simulate_get("/").json["versions"]
    assert [each["links"][0]["href"] for each in versions] == ["https://cloud.example/v2/", "https://cloud.example/v2.1/"]
