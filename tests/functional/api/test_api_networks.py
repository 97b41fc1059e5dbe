"""What a request may say of networks, what comes of it, and how addresses are shown."""

from __future__ import annotations

from typing import Any

import pytest

from api.opts import ApiSettings
from db.cell import instances
from objects.network import Network
from tests.support.api import IMAGE, NEWEST, OTHER_TENANT, TENANT, Front, with_status
from tests.support.fronts import front_fixture
from tests.support.ground import GROUNDS
from tests.support.pools import make_network, ports_of, used

UNKNOWN = "70a599e0-31e7-49b7-b260-868f441e8000"
TAGGED = {"OpenStack-API-Version": "compute 2.42"}


front = front_fixture(ApiSettings(max_servers_per_request=50), grounds=GROUNDS)


def boot(front: Front, networks: Any, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, str]:
    """The status, and the server's uuid or what the answer says."""
    server = {"name": "web", "flavorRef": "1", "imageRef": IMAGE} | ({} if networks is None else {"networks": networks}) | fields
    answer = front.post({"server": server}, headers)
    if answer.status_code == 202:
        return 202, answer.json["server"]["id"]
    [(_, error)] = answer.json.items()
    return answer.status_code, error["message"]


def networks_of(front: Front, server: str) -> list[str]:
    return [port.network for port in ports_of(front.database, server).get(server, ())]


@pytest.fixture
def blue(front: Front) -> Network:
    return make_network(front.database, "10.0.0.0/29", "fd00::/124", name="blue")


def test_addresses_are_shown_as_nova_shows_them(front: Front, blue: Network) -> None:
    status, server = boot(front, [{"uuid": blue.uuid, "tag": "front"}], TENANT | TAGGED)
    assert status == 202, server
    [port] = ports_of(front.database, server)[server]
    assert port.tag == "front"
    four, six = (each.address for each in port.addresses)
    kind = {"OS-EXT-IPS:type": "fixed", "OS-EXT-IPS-MAC:mac_addr": port.mac}
    expected = {"blue": [{"version": 4, "addr": four} | kind, {"version": 6, "addr": six} | kind]}
    assert front.get(f"/v2.1/servers/{server}", TENANT).json["server"]["addresses"] == expected
    [listed] = front.get("/v2.1/servers/detail", TENANT).json["servers"]
    assert listed["addresses"] == expected
    brief = {"blue": [{"version": 4, "addr": four}, {"version": 6, "addr": six}]}
    assert front.get(f"/v2.1/servers/{server}/ips", TENANT).json == {"addresses": brief}
    assert front.get(f"/v2.1/servers/{server}/ips/blue", TENANT).json == brief
    assert front.get(f"/v2.1/servers/{server}/ips/green", TENANT).status_code == 404
    assert front.get(f"/v2.1/servers/{server}/ips", OTHER_TENANT).status_code == 404
    assert front.get(f"/v2.1/servers/{UNKNOWN}/ips", TENANT).status_code == 404


def test_lists_find_servers_by_address(front: Front) -> None:
    blue = make_network(front.database, "10.0.0.0/28", "fd00::/124", name="blue")
    red = make_network(front.database, "192.0.2.0/29", name="red")
    first, second = (boot(front, [{"uuid": blue.uuid}, {"uuid": red.uuid}], TENANT)[1] for _ in range(2))
    bare = boot(front, "none", TENANT | NEWEST)[1]
    four = {
        server: port.addresses[0].address for server in (first, second) for port in ports_of(front.database, server)[server][:1]
    }

    def found(**query: str) -> set[str]:
        answer = with_status(front.get("/v2.1/servers", TENANT, **query), 200)
        return {server["id"] for server in answer.json["servers"]}

    assert found(ip=f"^{four[first].replace('.', chr(92) + '.')}$") == {first}
    assert found(ip="10.0.0.") == found(ip="^192") == found(ip6="^fd00") == {first, second}
    assert found(ip="fd00") == found(ip6="10") == found(ip="^0") == set()
    assert found(ip="10.0.0.", name="nobody") == set()
    assert found(name="web") == {first, second, bare}
    assert front.get("/v2.1/servers", TENANT, ip="(").status_code == 400


def test_interfaces_are_listed_and_shown(front: Front, blue: Network) -> None:
    status, server = boot(front, [{"uuid": blue.uuid, "tag": "front"}], TENANT | TAGGED)
    assert status == 202, server
    path = f"/v2.1/servers/{server}/os-interface"
    [port] = ports_of(front.database, server)[server]
    four, six = (each.address for each in port.addresses)
    subnets = {subnet.ip_version: subnet.uuid for subnet in blue.subnets}
    [shown] = front.get(path, TENANT).json["interfaceAttachments"]
    assert shown == {
        "port_id": shown["port_id"],
        "net_id": blue.uuid,
        "mac_addr": port.mac,
        "port_state": "DOWN",
        "fixed_ips": [{"ip_address": four, "subnet_id": subnets[4]}, {"ip_address": six, "subnet_id": subnets[6]}],
    }
    assert front.get(f"{path}/{shown['port_id']}", TENANT).json == {"interfaceAttachment": shown}
    assert front.get(f"{path}/{shown['port_id']}", TENANT | NEWEST).json["interfaceAttachment"]["tag"] == "front"
    front.bring_up(server)
    assert front.get(path, TENANT).json["interfaceAttachments"] == [shown | {"port_state": "ACTIVE"}]
    assert front.get(f"{path}/{UNKNOWN}", TENANT).status_code == 404
    assert front.get(path, OTHER_TENANT).status_code == 404


def test_what_servers_never_have_is_empty(front: Front) -> None:
    server = front.boot(headers=TENANT)
    path = f"/v2.1/servers/{server}"
    assert front.get(f"{path}/os-interface", TENANT).json == {"interfaceAttachments": []}
    assert front.get(f"{path}/os-volume_attachments", TENANT).json == {"volumeAttachments": []}
    assert front.get(f"{path}/os-volume_attachments/{UNKNOWN}", TENANT).status_code == 404
    assert front.get(f"{path}/os-server-password", TENANT).json == {"password": ""}
    assert front.client.simulate_delete(f"{path}/os-server-password", headers=TENANT).status_code == 204
    for name in ("os-interface", "os-volume_attachments", "os-server-password"):
        assert front.get(f"{path}/{name}", OTHER_TENANT).status_code == 404


def test_addresses_last_through_boot_until_server_deletion(front: Front, blue: Network) -> None:
    _, server = boot(front, [{"uuid": blue.uuid}])
    own = ports_of(front.database, server)
    front.bring_up(server)
    assert ports_of(front.database, server) == own
    assert front.delete(server).status_code == 204
    assert used(front.database) == 2
    front.cell.write(instances.delete, [server], 1.0, None)
    front.destroyed(server)
    front.follow_feed()
    assert used(front.database) == 0


@pytest.mark.parametrize("asked", ["auto", None, []])
def test_without_a_network_a_server_has_no_interface(front: Front, asked: Any) -> None:
    status, server = boot(front, asked, TENANT | (NEWEST if asked == "auto" else {}))
    assert (status, networks_of(front, server)) == (202, [])
    assert front.get(f"/v2.1/servers/{server}", TENANT).json["server"]["addresses"] == {}


@pytest.mark.parametrize("asked", ["auto", None, []])
def test_the_only_network_is_the_one(front: Front, asked: Any) -> None:
    headers = TENANT | (NEWEST if asked == "auto" else {})
    make_network(front.database, "10.0.0.0/29", name="blue")
    make_network(front.database, "10.0.1.0/29", name="theirs", project_ids=("p2", "p3"))
    status, server = boot(front, asked, headers)
    assert (status, networks_of(front, server)) == (202, ["blue"])
    status, message = boot(front, asked, OTHER_TENANT | headers | {"X-Project-Id": "p2"})
    assert (status, message) == (409, "Multiple possible networks found, use a Network ID to be more specific.")
    status, server = boot(front, "none", TENANT | NEWEST)
    assert (status, networks_of(front, server)) == (202, [])


def test_an_unavailable_address_is_refused_without_traces(front: Front, blue: Network) -> None:
    theirs = make_network(front.database, "10.0.1.0/29", name="theirs", project_ids=("p2",))
    bare = make_network(front.database, name="bare")
    taken = ports_of(front.database, boot(front, [{"uuid": blue.uuid}])[1])
    [[port]] = taken.values()
    uuids = front.uuids()
    one = port.addresses[0].address
    for asked, status, sentence in (
        ([{"uuid": UNKNOWN}], 400, f"Network {UNKNOWN} could not be found."),
        ([{"uuid": theirs.uuid}], 400, f"Network {theirs.uuid} could not be found."),
        ([{"uuid": bare.uuid}], 400, "requires a subnet"),
        ([{"port": UNKNOWN}], 400, f"Port {UNKNOWN} could not be found"),
        ([{"tag": "x"}], 400, "server.networks[0].uuid: is required"),
        ([{"uuid": blue.uuid, "fixed_ip": "10.9.9.9"}], 400, "is not a valid ip address for network"),
        ([{"uuid": blue.uuid, "fixed_ip": "10.0.0.1"}], 400, "is not in the pool of network blue"),
        ([{"uuid": blue.uuid, "fixed_ip": one}], 400, f"Fixed IP address {one} is already in use."),
        ([{"uuid": blue.uuid, "fixed_ip": "10.0.0.6"}] * 2, 409, "named twice"),
    ):
        got, message = boot(front, asked, TENANT | TAGGED)
        assert got == status, (asked, message)
        assert sentence in message, asked
    several = [{"uuid": blue.uuid, "fixed_ip": "10.0.0.6"}]
    assert boot(front, several, max_count=2)[0] == 400
    got, message = boot(front, [{"uuid": blue.uuid}], max_count=5, min_count=5)
    assert (got, message.partition(":")[0]) == (409, "No more fixed IP addresses")
    assert "network blue has 4 free, and the request needs 5" in message
    assert front.uuids() == uuids
    assert used(front.database) == 2
    assert boot(front, several)[0] == 202


def test_a_repeated_key_returns_the_same_server(front: Front, blue: Network) -> None:
    key = {"Idempotency-Key": "k1"}
    first = boot(front, [{"uuid": blue.uuid}], TENANT | key)
    assert boot(front, [{"uuid": blue.uuid}], TENANT | key) == first
    assert used(front.database) == 2
