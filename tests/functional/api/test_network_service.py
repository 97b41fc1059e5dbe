"""Networks, subnets and ports as clients look them up in a network service."""

from __future__ import annotations

import pytest

from api.opts import ApiSettings
from objects.network import Network
from tests.support.api import NEWEST, OTHER_TENANT, TENANT, Front
from tests.support.fronts import front_fixture
from tests.support.pools import make_network, ports_of

UNKNOWN = "70a599e0-31e7-49b7-b260-868f441e8000"


front = front_fixture(ApiSettings(max_limit=3))


@pytest.fixture
def blue(front: Front) -> Network:
    return make_network(front.database, "10.0.0.0/28", "fd00::/124", name="blue")


def names(front: Front, query: str = "", headers: dict[str, str] = TENANT) -> list[str]:
    return [each["name"] for each in front.get(f"/network/v2.0/networks{query}", headers).json["networks"]]


def test_a_network_is_found_by_name_and_id(front: Front, blue: Network) -> None:
    make_network(front.database, "10.0.1.0/29", name="theirs", project_ids=("p2",))
    assert names(front) == ["blue"]
    assert names(front, headers=OTHER_TENANT | {"X-Project-Id": "p2"}) == ["blue", "theirs"]
    assert names(front, "?name=blue&fields=id&fields=name") == ["blue"]
    assert names(front, f"?id={blue.uuid}&router:external=False&shared=true") == ["blue"]
    assert names(front, "?name=red") == []
    shown = front.get(f"/network/v2.0/networks/{blue.uuid}", TENANT).json["network"]
    assert (shown["name"], shown["subnets"]) == ("blue", [subnet.uuid for subnet in blue.subnets])
    assert front.get("/network/v2.0/networks/blue", TENANT).status_code == 404
    subnets = front.get(f"/network/v2.0/subnets?network_id={blue.uuid}&ip_version=4", TENANT).json["subnets"]
    assert [(each["cidr"], each["gateway_ip"]) for each in subnets] == [("10.0.0.0/28", "10.0.0.1")]
    assert front.get(f"/network/v2.0/subnets/{subnets[0]['id']}", TENANT).json["subnet"] == subnets[0]


def test_ports_are_those_of_the_projects_servers(front: Front, blue: Network) -> None:
    server = front.boot(networks=[{"uuid": blue.uuid}], headers=TENANT)
    front.boot(headers=OTHER_TENANT, networks=[{"uuid": blue.uuid}])
    [own] = front.get("/network/v2.0/ports", TENANT).json["ports"]
    [port] = ports_of(front.database, server)[server]
    assert (own["device_id"], own["mac_address"], own["network_id"]) == (server, port.mac, blue.uuid)
    [attached] = front.get(f"/v2.1/servers/{server}/os-interface", TENANT).json["interfaceAttachments"]
    assert (own["id"], own["fixed_ips"]) == (attached["port_id"], attached["fixed_ips"])
    assert front.get(f"/network/v2.0/ports/{own['id']}", TENANT).json["port"] == own
    assert front.get(f"/network/v2.0/ports?device_id={server}", TENANT).json["ports"] == [own]
    assert front.get(f"/network/v2.0/ports?device_id={server}", OTHER_TENANT).json["ports"] == []
    assert front.get(f"/network/v2.0/ports/{own['id']}", OTHER_TENANT).status_code == 404
    assert len(front.get("/network/v2.0/ports").json["ports"]) == 2, "administrators see all"
    asked = f"/network/v2.0/ports?device_id={server}&all_projects=true"
    assert front.get(asked).json["ports"] == front.get(asked, TENANT).json["ports"] == [own], "as Skyline asks"
    assert front.get(asked, OTHER_TENANT).json["ports"] == []


def test_pages_hold_each_network_once(front: Front) -> None:
    for number in range(5):
        make_network(front.database, f"10.0.{number}.0/29", name=f"n{number}")
    answer = front.get("/network/v2.0/networks?shared=true", TENANT).json
    first = answer["networks"]
    assert [link["href"].partition("/network/")[2] for link in answer["networks_links"]] == [
        f"v2.0/networks?shared=true&marker={first[-1]['id']}"
    ]
    assert "networks_links" not in front.get(f"/network/v2.0/networks?marker={first[-1]['id']}", TENANT).json
    assert [each["name"] for each in first] == ["n0", "n1", "n2"]
    assert names(front, f"?limit=2&marker={first[-1]['id']}") == ["n3", "n4"]
    assert front.get(f"/network/v2.0/networks?marker={UNKNOWN}", TENANT).status_code == 400


def test_absent_resources_are_empty_or_refused(front: Front, blue: Network) -> None:
    assert front.get("/network/v2.0/floatingips", TENANT).json == {"floatingips": []}
    assert front.get(f"/network/v2.0/routers/{UNKNOWN}", TENANT).status_code == 404
    assert front.get("/network/v2.0/nonsense", TENANT).status_code == 404
    refused = front.get("/network/v2.0/networks?colour=red", TENANT)
    assert (refused.status_code, "colour: is not a field" in refused.text) == (400, True)
    for method, path, words in (
        ("POST", "networks", "superconductor network create"),
        ("PUT", f"networks/{blue.uuid}", "superconductor network create"),
        ("DELETE", f"subnets/{UNKNOWN}", "superconductor network create"),
        ("POST", "routers", "routers: this service has none"),
        ("POST", "floatingips", "floatingips: this service has none"),
        ("PUT", "quotas/p1", "[quota] ports"),
    ):
        answer = front.client.simulate_request(method, f"/network/v2.0/{path}", headers=TENANT | NEWEST, json={})
        assert answer.status_code == 501, path
        assert words in answer.json["notImplemented"]["message"]


def test_quotas_show_ports_and_nothing_else(front: Front, blue: Network) -> None:
    quota = front.get("/network/v2.0/quotas/p1", TENANT).json["quota"]
    assert (quota["port"], quota["network"], quota["security_group"]) == (ApiSettings().ports, 0, 1)
    assert front.get("/network/v2.0/quotas/p1/default", TENANT).json["quota"] == quota
    body = {"port": {"network_id": blue.uuid}}
    assert front.client.simulate_post("/network/v2.0/ports", headers=TENANT, json=body).status_code == 201
    details = front.get("/network/v2.0/quotas/p1/details", TENANT).json["quota"]
    assert details["port"] == {"limit": quota["port"], "used": 1, "reserved": 0}
    assert {name: each["limit"] for name, each in details.items()} == quota
    assert front.get("/network/v2.0/quotas/p2", TENANT).status_code == 403
    assert front.client.simulate_delete("/network/v2.0/quotas/p1", headers=TENANT).status_code == 403
    assert front.client.simulate_delete("/network/v2.0/quotas/p1").status_code == 204, "the limits are the defaults already"


def test_the_version_is_found_without_a_token(front: Front) -> None:
    [version] = front.get("/network").json["versions"]
    assert version["id"] == "v2.0"
    assert version["links"][0]["href"].endswith("/network/v2.0/")
    assert {each["name"] for each in front.get("/network/v2.0").json["resources"]} >= {"network", "port"}
