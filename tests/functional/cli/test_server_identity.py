"""What belongs to a server stays with it, whatever is done with the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import requests

from service.periodic import wait_until
from tests.functional.cli.test_cli_standalone import file_of
from tests.support.commands import standalone
from tests.support.keys import ED25519
from tests.support.region import IMAGE

ADMIN = {"X-Roles": "admin", "OpenStack-API-Version": "compute 2.96"}
QUICK = "[simulated]\ntask_delay = 0.0\n"
PATIENCE_S = 60.0
OF_THE_HOST = {"OS-EXT-SRV-ATTR:host", "OS-EXT-SRV-ATTR:hypervisor_hostname", "hostId", "updated", "OS-SRV-USG:launched_at"}
"""Fields that a move changes."""


class Client:
    """An administrator of one standalone."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.http = requests.Session()
        self.http.trust_env = False
        self.http.headers.update(ADMIN)

    def get(self, path: str, **params: str) -> Any:
        return self.http.get(f"{self.endpoint}{path}", params=params).json()

    def send(self, method: str, path: str, body: Any) -> Any:
        answer = self.http.request(method, f"{self.endpoint}{path}", json=body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.text else None

    def show(self, server: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.get(f"/servers/{server}")["server"]
        return shown

    def is_active(self, server: str) -> bool:
        return bool(self.show(server)["status"] == "ACTIVE")

    def act(self, server: str, action: str, value: Any = None, status: str = "ACTIVE") -> None:
        """Carry out the action, and wait until the server has this status and is at rest."""

        def accepted() -> bool:  # the operation before may be just ending
            answer = self.http.post(f"{self.endpoint}/servers/{server}/action", json={action: value})
            assert answer.status_code < 300 or answer.status_code == 409, answer.text
            return answer.status_code < 300

        assert wait_until(accepted, PATIENCE_S)
        time.sleep(0.1)

        def rests() -> bool:
            shown = self.show(server)
            return (shown["status"], shown["OS-EXT-STS:task_state"]) == (status, None)

        assert wait_until(rests, PATIENCE_S), self.show(server)

    def force_down(self, host: str, *, down: bool) -> None:
        [service] = self.get("/os-services", host=host, binary="nova-compute")["services"]
        self.send("PUT", f"/os-services/{service['id']}", {"forced_down": down})


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("standalone")
    with standalone(folder / "state", file_of(folder, QUICK)) as endpoint:
        made = Client(endpoint)
        made.send("POST", "/os-keypairs", {"keypair": {"name": "mine", "type": "ssh", "public_key": ED25519}})
        yield made


@pytest.fixture(scope="module")
def servers(client: Client) -> list[str]:
    """Two of one request, with everything that a user can give."""
    flavor = client.get("/flavors")["flavors"][0]["id"]
    fields = {"tags": ["a", "b"], "metadata": {"k": "v"}, "description": "mine", "config_drive": True, "key_name": "mine"}
    asked = {"name": "web", "flavorRef": flavor, "imageRef": IMAGE, "networks": "auto", "min_count": 2, "max_count": 2}
    more = {"user_data": "IyEvYmluL3NoCg==", "accessIPv4": "192.0.2.1", "return_reservation_id": True}
    reservation = client.send("POST", "/servers", {"server": asked | fields | more})["reservation_id"]
    listed = client.get("/servers/detail", reservation_id=reservation)["servers"]
    uuids = [server["id"] for server in listed]
    assert len(uuids) == 2
    for uuid in uuids:
        assert wait_until(partial(client.is_active, uuid), PATIENCE_S)
        client.send("PUT", f"/servers/{uuid}", {"server": {"hostname": f"host-{uuid[:8]}"}})
        client.act(uuid, "lock", {"locked_reason": "precious"})
    return uuids


def migrate(client: Client, server: str) -> None:
    client.act(server, "migrate", status="VERIFY_RESIZE")
    client.act(server, "confirmResize")


def migrate_live(client: Client, server: str) -> None:
    client.act(server, "os-migrateLive", {"host": None, "block_migration": "auto"})


def resize(client: Client, server: str) -> None:
    client.act(server, "resize", {"flavorRef": client.get("/flavors")["flavors"][1]["id"]}, "VERIFY_RESIZE")
    client.act(server, "confirmResize")


def resize_back(client: Client, server: str) -> None:
    client.act(server, "resize", {"flavorRef": client.get("/flavors")["flavors"][2]["id"]}, "VERIFY_RESIZE")
    client.act(server, "revertResize")


def shelve(client: Client, server: str) -> None:
    client.act(server, "shelve", status="SHELVED_OFFLOADED")
    client.act(server, "unshelve")


def evacuate(client: Client, server: str) -> None:
    host = client.show(server)["OS-EXT-SRV-ATTR:host"]
    client.force_down(host, down=True)
    client.act(server, "evacuate", {}, "SHUTOFF")
    client.force_down(host, down=False)
    client.act(server, "os-start")


def rebuild(client: Client, server: str) -> None:
    client.act(server, "rebuild", {"imageRef": IMAGE})


def stop(client: Client, server: str) -> None:
    client.act(server, "os-stop", status="SHUTOFF")
    client.act(server, "os-start")


CHANGES = {
    "migrate": (migrate, OF_THE_HOST),
    "live": (migrate_live, OF_THE_HOST),
    "resize": (resize, OF_THE_HOST | {"flavor"}),
    "revert": (resize_back, OF_THE_HOST),
    "shelve": (shelve, OF_THE_HOST),
    "evacuate": (evacuate, OF_THE_HOST),
    "rebuild": (rebuild, {"updated", "OS-SRV-USG:launched_at"}),
    "stop": (stop, {"updated"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_belongs_to_a_server_stays(client: Client, servers: list[str], change: str) -> None:
    carry_out, may_change = CHANGES[change]
    before = client.show(servers[0])
    reservation = before["OS-EXT-SRV-ATTR:reservation_id"]
    carry_out(client, servers[0])
    after = client.show(servers[0])
    assert after.keys() == before.keys()
    assert {name for name in before if before[name] != after[name]} <= may_change
    found = client.get("/servers/detail", reservation_id=reservation)["servers"]
    assert sorted(server["id"] for server in found) == sorted(servers)
    assert {server["OS-EXT-SRV-ATTR:reservation_id"] for server in found} == {reservation}
    assert sorted(server["OS-EXT-SRV-ATTR:launch_index"] for server in found) == [0, 1]
