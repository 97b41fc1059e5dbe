"""An API that authenticates nobody serves no web page: neither one that has pointed its name here, nor one from elsewhere."""

from __future__ import annotations

import falcon.testing
import pytest

from api.main import build_app
from api.opts import ApiSettings
from tests.support.api import IMAGE, TESTING_HOST, Front, with_status


def client(front: Front, **settings: object) -> falcon.testing.TestClient:
    return falcon.testing.TestClient(build_app(ApiSettings(**settings), front.registry, front.database, front.bus))  # type: ignore[arg-type]  # each test gives what fits


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8774", "127.8.9.1", "localhost", "LOCALHOST:8774", "localhost.", "[::1]:8774", "[::ffff:127.0.0.1]"],
)
def test_loopback_accepts_any_of_its_names(front: Front, host: str) -> None:
    assert client(front).simulate_get("/v2.1/servers", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8774", "127.0.0.1.evil.example", "localhost.evil.example", "192.0.2.1", "[2001:db8::1]:8774",
     "127.0.0.1@evil.example", "evil.example@127.0.0.1", "", "[::1", "127.0.0.1:x"],
)  # fmt: skip
def test_another_name_is_refused_in_a_sentence(front: Front, host: str) -> None:
    """Before anything is done: this is how a page that has pointed its name to 127.0.0.1 asks."""
    body = {"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE}}
    answer = with_status(client(front).simulate_post("/v2.1/servers", headers={"Host": host}, json=body), 400)
    assert answer.json["badRequest"]["message"].startswith(f"Host: {host!r} is not a name of this API")
    assert "[api] allowed_hosts" in answer.json["badRequest"]["message"]
    assert front.uuids() == []


def test_accepted_names_are_those_of_the_configuration(front: Front) -> None:
    """The address listened on, the public endpoint, and those that are listed."""
    ours = client(
        front, host="api.box", public_endpoint="https://Cloud.Example:8443/", allowed_hosts=("proxy.example", "192.0.2.7")
    )
    for host in ("api.box:8774", "cloud.example", "Proxy.Example:80", "192.0.2.7"):
        assert ours.simulate_get("/v2.1/servers", headers={"Host": host}).status_code == 200, host
        assert ours.simulate_get("/v2.1/servers", headers={"Host": "localhost", "Origin": f"http://{host}"}).status_code == 200, (
            host
        )
    assert ours.simulate_get("/v2.1/servers", headers={"Host": "www.proxy.example"}).status_code == 400


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://evil.example:8774", "null", "", "file://", "http://localhost.evil.example"]
)
def test_pages_of_other_hosts_are_refused(front: Front, origin: str) -> None:
    """Whatever they ask, and also where they only ask whether they may."""
    headers = {"Host": "127.0.0.1:8774", "Origin": origin}
    uuid = front.boot()
    for method in ("GET", "DELETE", "OPTIONS"):
        answer = client(front).simulate_request(method, f"/v2.1/servers/{uuid}", headers=headers)
        assert answer.status_code == 403, method
        assert "access-control-allow-origin" not in answer.headers
    assert front.uuids() == [uuid]


def test_pages_of_this_machine_are_served(front: Front) -> None:
    for origin in ("http://127.0.0.1:8774", "http://localhost:3000", "http://[::1]:8774"):
        headers = {"Host": "127.0.0.1:8774", "Origin": origin}
        assert client(front).simulate_get("/v2.1/servers", headers=headers).status_code == 200, origin


def test_a_public_api_checks_no_names(front: Front) -> None:
    headers = {"Host": TESTING_HOST, "Origin": "https://dashboard.example"}
    assert client(front, noauth_anywhere=True).simulate_get("/v2.1/servers", headers=headers).status_code == 200


def test_a_request_without_name_comes_from_no_browser(front: Front) -> None:
    """HTTP/1.0 has none."""
    environ = falcon.testing.create_environ("/v2.1/servers", host="evil.example")
    del environ["HTTP_HOST"]
    catcher = falcon.testing.StartResponseMock()
    build_app(ApiSettings(), front.registry, front.database, front.bus)(environ, catcher)
    assert str(catcher.status).startswith("200")


def test_an_image_search_without_store_says_the_remedy(front: Front) -> None:
    for path in ("/v2.1/images", "/v2.1/p1/images", f"/v2.1/images/{IMAGE}"):
        answer = with_status(front.get(path), 404)
        assert "There is no image service at this address" in answer.json["itemNotFound"]["message"]


def test_what_is_not_offered_is_named(front: Front) -> None:
    assert front.get("/v2.1/os-nonsense").json["itemNotFound"]["message"] == "GET /v2.1/os-nonsense is not offered by this service."
    patch = front.client.simulate_patch("/v2.1/servers/x").json["badMethod"]["message"]
    assert patch == "PATCH /v2.1/servers/x is not offered by this service."
