"""Ports that projects make at ``/network`` before they boot servers with them, as Terraform and Cluster API do."""

from __future__ import annotations

from typing import Any

import falcon.testing
import pytest

from api.lookup import security_groups
from api.opts import ApiSettings
from db.cell import instances
from objects.network import Network
from tests.support.api import IMAGE, NEWEST, OTHER_TENANT, TENANT, Front, with_status
from tests.support.fronts import front_fixture
from tests.support.pools import make_network, ports_of, used

UNKNOWN = "70a599e0-31e7-49b7-b260-868f441e8000"
PORTS = "/network/v2.0/ports"
READER = TENANT | {"X-Roles": "reader"}


front = front_fixture(ApiSettings(ports=4))


@pytest.fixture
def blue(front: Front) -> Network:
    return make_network(front.database, "10.0.0.0/28", "fd00::/124", name="blue")


def ask(front: Front, method: str, path: str, body: Any = None, headers: dict[str, str] = TENANT) -> falcon.testing.Result:
    return front.client.simulate_request(method, path, headers=headers, json=body)


def make(front: Front, network: Network, headers: dict[str, str] = TENANT, **asked: Any) -> dict[str, Any]:
    answer = with_status(ask(front, "POST", PORTS, {"port": {"network_id": network.uuid} | asked}, headers), 201)
    made: dict[str, Any] = answer.json["port"]
    return made


def show(front: Front, port: dict[str, Any], headers: dict[str, str] = TENANT) -> dict[str, Any]:
    found: dict[str, Any] = ask(front, "GET", f"{PORTS}/{port['id']}", headers=headers).json["port"]
    return found


def boot(front: Front, *networks: dict[str, Any], headers: dict[str, str] = TENANT, **more: Any) -> falcon.testing.Result:
    server = {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "networks": list(networks)} | more
    return front.post({"server": server}, headers | NEWEST)


def booted(front: Front, *networks: dict[str, Any]) -> str:
    answer = with_status(boot(front, *networks), 202)
    return str(answer.json["server"]["id"])


def text_of(answer: falcon.testing.Result, status: int) -> str:
    assert answer.status_code == status, answer.text
    [fault] = answer.json.values()
    return str(fault["message"])


def test_a_port_is_made_and_found(front: Front, blue: Network) -> None:
    made = make(front, blue, name="web-0", description="the first", admin_state_up=True, tags=["b", "a"])
    assert (made["name"], made["description"], made["tags"], made["status"]) == ("web-0", "the first", ["a", "b"], "DOWN")
    assert (made["device_id"], made["device_owner"], made["project_id"], made["network_id"]) == ("", "", "p1", blue.uuid)
    assert [each["subnet_id"] for each in made["fixed_ips"]] == [subnet.uuid for subnet in blue.subnets]
    assert made["mac_address"].startswith("fa:16:3e:")
    assert show(front, made) == made
    assert ask(front, "GET", f"{PORTS}?name=web-0").json["ports"] == [made]
    assert ask(front, "GET", f"{PORTS}?name=web-1").json["ports"] == []
    assert ask(front, "GET", PORTS, headers=OTHER_TENANT).json["ports"] == []
    assert ask(front, "GET", PORTS, headers={}).json["ports"] == [made], "administrators see all"
    assert text_of(ask(front, "GET", f"{PORTS}/{made['id']}", headers=OTHER_TENANT), 404)
    server_port = front.boot(headers=TENANT, networks=[{"uuid": blue.uuid}])
    assert {each["device_id"] for each in ask(front, "GET", PORTS).json["ports"]} == {"", server_port}


def test_ports_are_found_by_addresses_and_tags(front: Front, blue: Network) -> None:
    first = make(front, blue, tags=["web", "blue"], fixed_ips=[{"ip_address": "10.0.0.9"}])
    make(front, blue, tags=["web"])
    subnet = first["fixed_ips"][0]["subnet_id"]

    def found(query: str) -> int:
        return len(ask(front, "GET", f"{PORTS}?{query}").json["ports"])

    assert (found("tags=web"), found("tags=web,blue"), found("tags=red")) == (2, 1, 0)
    assert (found("fixed_ips=ip_address%3D10.0.0.9"), found("fixed_ips=ip_address%3D10.0.0.99")) == (1, 0)
    assert (found(f"fixed_ips=subnet_id%3D{subnet}"), found("fixed_ips=ip_address_substr%3Dfd00")) == (2, 1)
    assert found(f"fixed_ips=subnet_id%3D{subnet}&fixed_ips=ip_address%3D10.0.0.9") == 1
    assert found(f"security_groups={first['security_groups'][0]}") == 2
    assert "is not one of" in text_of(ask(front, "GET", f"{PORTS}?fixed_ips=mac%3D1"), 400)
    assert "is not a field" in text_of(ask(front, "GET", f"{PORTS}?tags-any=web"), 400)


def test_addresses_are_asked_for_by_subnet(front: Front, blue: Network) -> None:
    four, six = (subnet.uuid for subnet in blue.subnets)
    made = make(front, blue, fixed_ips=[{"ip_address": "10.0.0.9"}])
    assert made["fixed_ips"] == [{"ip_address": "10.0.0.9", "subnet_id": four}]
    [only] = make(front, blue, fixed_ips=[{"subnet_id": six}])["fixed_ips"]
    assert only["subnet_id"] == six
    both = make(front, blue, fixed_ips=[{"subnet_id": six}, {"subnet_id": four, "ip_address": "10.0.0.8"}])
    assert [each["subnet_id"] for each in both["fixed_ips"]] == [four, six]
    for asked, status, sentence in (
        ([{"ip_address": "10.0.0.9"}], 409, "already in use"),
        ([{"ip_address": "10.0.0.1"}], 400, "is not in the pool"),
        ([{"ip_address": "192.0.2.1"}], 400, "is not a valid ip address"),
        ([{"subnet_id": UNKNOWN}], 400, "has no subnet"),
        ([{"subnet_id": six, "ip_address": "10.0.0.7"}], 400, "is not in subnet"),
        ([{"subnet_id": four}, {"ip_address": "10.0.0.7"}], 400, "one address of a subnet"),
        ([{}], 400, "give subnet_id, ip_address or both"),
        ([], 400, "a port needs an address"),
    ):
        answer = ask(front, "POST", PORTS, {"port": {"network_id": blue.uuid, "fixed_ips": asked}})
        assert sentence in text_of(answer, status), asked
    assert used(front.database) == 4


def test_what_a_port_will_not_have_is_refused(front: Front, blue: Network) -> None:
    group = security_groups.id_of("p1")
    for field, value in (
        ("admin_state_up", False),
        ("mac_address", "fa:16:3e:00:00:01"),
        ("device_id", UNKNOWN),
        ("binding:vnic_type", "direct"),
        ("port_security_enabled", True),
        ("allowed_address_pairs", [{"ip_address": "10.0.0.0/28"}]),
        ("security_groups", []),
        ("security_groups", [UNKNOWN]),
        ("colour", "blue"),
    ):
        answer = ask(front, "POST", PORTS, {"port": {"network_id": blue.uuid, field: value}})
        assert f"port.{field}: " in text_of(answer, 400)
    usual: dict[str, Any] = {
        "security_groups": [group],
        "binding:vnic_type": "normal",
        "binding:profile": {},
        "allowed_address_pairs": [],
    }
    assert make(front, blue, **usual, name=None, mac_address=None)["security_groups"] == [group]
    bare = make_network(front.database, name="bare")
    theirs = make_network(front.database, "10.0.1.0/29", name="theirs", project_ids=("p2",))
    for body, status, sentence in (
        ({"port": {"network_id": bare.uuid}}, 400, "its network has no subnet yet"),
        ({"port": {"network_id": theirs.uuid}}, 404, f"Network {theirs.uuid} could not be found"),
        ({"port": {"network_id": UNKNOWN}}, 404, "could not be found"),
        ({"port": {}}, 400, "port.network_id: is required"),
        ({"ports": [{"network_id": blue.uuid}]}, 400, "ports: is not a field that can be given here"),
        ({"port": {"network_id": blue.uuid, "project_id": "p2"}}, 403, "other projects"),
    ):
        assert sentence in text_of(ask(front, "POST", PORTS, body), status)
    assert ask(front, "POST", PORTS, {"port": {"network_id": blue.uuid}}, READER).status_code == 403
    assert make(front, theirs, {}, project_id="p2")["project_id"] == "p2", "administrators make ports for others"


def test_a_project_has_a_limit_of_ports(front: Front, blue: Network) -> None:
    for _ in range(4):
        make(front, blue)
    assert "Quota exceeded" in text_of(ask(front, "POST", PORTS, {"port": {"network_id": blue.uuid}}), 409)
    make(front, blue, OTHER_TENANT)


def test_a_server_boots_with_a_port(front: Front, blue: Network) -> None:
    port = make(front, blue, name="web-0")
    server = booted(front, {"port": port["id"], "tag": "front"})
    [own] = ports_of(front.database, server)[server]
    assert own.mac == port["mac_address"]
    interfaces = f"/v2.1/servers/{server}/os-interface"
    [shown] = front.get(interfaces, TENANT | NEWEST).json["interfaceAttachments"]
    assert (shown["port_id"], shown["mac_addr"], shown["tag"]) == (port["id"], port["mac_address"], "front")
    assert front.get(f"{interfaces}/{port['id']}", TENANT | NEWEST).json["interfaceAttachment"] == shown
    bound = show(front, port)
    assert (bound["device_id"], bound["device_owner"].partition(":")[0], bound["name"]) == (server, "compute", "web-0")
    assert ask(front, "GET", f"{PORTS}?device_id={server}").json["ports"] == [bound]
    front.bring_up(server)
    assert show(front, port)["status"] == "ACTIVE"
    assert front.delete(server, TENANT).status_code == 204
    assert show(front, port)["device_id"] == server, "its guest may still run"
    assert "is still in use" in text_of(boot(front, {"port": port["id"]}), 409)
    front.cell.write(instances.delete, [server], 1.0, None)
    front.destroyed(server)
    front.follow_feed()
    assert show(front, port) == port
    booted(front, {"port": port["id"]})


def test_what_no_boot_can_have_is_refused(front: Front, blue: Network) -> None:
    port, other = make(front, blue), make(front, blue, OTHER_TENANT)
    cases: tuple[tuple[list[dict[str, Any]], dict[str, Any], int, str], ...] = (
        ([{"port": UNKNOWN}], {}, 400, f"Port {UNKNOWN} could not be found"),
        ([{"port": other["id"]}], {}, 400, f"Port {other['id']} could not be found"),
        ([{"port": port["id"]}], {"min_count": 2}, 400, "one port cannot go to 2 servers"),
        ([{"port": port["id"]}, {"port": port["id"]}], {}, 400, "is named twice"),
        ([{"port": port["id"], "fixed_ip": "10.0.0.5"}], {}, 400, "give either this or the port"),
    )
    for networks, more, status, sentence in cases:
        assert sentence in text_of(boot(front, *networks, **more), status)
    booted(front, {"port": port["id"]}, {"uuid": blue.uuid})
    assert "is still in use" in text_of(boot(front, {"port": port["id"]}), 409)
    assert text_of(boot(front, {"port": other["id"]}, headers={}), 400), "an administrator boots for its own project"


def test_a_port_is_attached_and_detached(front: Front, blue: Network) -> None:
    port, other = make(front, blue), make(front, blue, OTHER_TENANT)
    server = booted(front)
    front.bring_up(server)
    path = f"/v2.1/servers/{server}/os-interface"

    def attach(**asked: Any) -> falcon.testing.Result:
        return front.client.simulate_post(path, headers=TENANT | NEWEST, json={"interfaceAttachment": asked})

    assert "could not be found" in text_of(attach(port_id=UNKNOWN), 404)
    assert "could not be found" in text_of(attach(port_id=other["id"]), 404)
    assert "give it alone" in text_of(attach(port_id=port["id"], net_id=blue.uuid), 400)
    answer = attach(port_id=port["id"])
    assert answer.status_code == 200, answer.text
    assert answer.json["interfaceAttachment"]["port_id"] == port["id"]
    assert (show(front, port)["device_id"], show(front, port)["status"]) == (server, "BUILD")


def test_a_port_is_changed_and_deleted(front: Front, blue: Network) -> None:
    port = make(front, blue, name="a")
    path = f"{PORTS}/{port['id']}"
    changed = ask(front, "PUT", path, {"port": {"name": "b", "description": None}}).json["port"]
    assert changed == port | {"name": "b", "updated_at": changed["updated_at"]}
    assert "port.device_id: " in text_of(ask(front, "PUT", path, {"port": {"device_id": UNKNOWN}}), 400)
    assert "port.network_id: " in text_of(ask(front, "PUT", path, {"port": {"network_id": blue.uuid}}), 400)
    for method, body in (("PUT", {"port": {"name": "x"}}), ("DELETE", None)):
        assert text_of(ask(front, method, path, body, OTHER_TENANT), 404)
        assert ask(front, method, path, body, READER).status_code == 403
    server = booted(front, {"port": port["id"]})
    assert f"is in use by server {server}" in text_of(ask(front, "DELETE", path), 409)
    assert front.delete(server, TENANT).status_code == 204
    assert ask(front, "DELETE", path).status_code == 204
    assert text_of(ask(front, "DELETE", path), 404)
    assert used(front.database) == 0


def test_tags_are_replaced_as_a_whole(front: Front, blue: Network) -> None:
    port = make(front, blue)
    path = f"{PORTS}/{port['id']}/tags"
    assert ask(front, "PUT", path, {"tags": ["y", "x", "x"]}).json == {"tags": ["x", "y"]}
    assert show(front, port)["tags"] == ask(front, "GET", path).json["tags"] == ["x", "y"]
    assert text_of(ask(front, "GET", path, headers=OTHER_TENANT), 404)
    assert text_of(ask(front, "PUT", path, {"tags": [""]}), 400)
    assert ask(front, "DELETE", path).status_code == 204
    assert show(front, port)["tags"] == []


def test_a_port_created_with_its_server_is_deleted(front: Front, blue: Network) -> None:
    front.boot(headers=TENANT, networks=[{"uuid": blue.uuid}])
    [port] = ask(front, "GET", PORTS).json["ports"]
    path = f"{PORTS}/{port['id']}"
    for method, where, body in (
        ("PUT", path, {"port": {"name": "x"}}),
        ("DELETE", path, None),
        ("PUT", f"{path}/tags", {"tags": ["x"]}),
    ):
        assert "was made with its server" in text_of(ask(front, method, where, body), 409)
    assert ask(front, "GET", f"{path}/tags").json == {"tags": []}
