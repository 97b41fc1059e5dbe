"""Interfaces of a server that are attached and detached over HTTP: addresses, states, and how servers are shown meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import falcon.testing
import pytest

from db.api.operations import steps
from db.api.servers import networks
from objects.network import Network
from objects.operation import OperationKind, OperationState
from objects.port import Port
from objects.task import Power
from tests.functional.api.test_api_operations import NEW, READER, act, at, shown, the_operation, write
from tests.support.api import NEWEST, OTHER_TENANT, TENANT, Front, refusal
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL
from tests.support.pools import make_network, ports_of, used

UNKNOWN = "70a599e0-31e7-49b7-b260-868f441e8000"


front = front_fixture(grounds=USUAL)


@pytest.fixture
def server(front: Front) -> str:
    """A server without interfaces that is ACTIVE on host h1."""
    uuid = front.boot("web", TENANT | NEWEST, networks="none")
    front.bring_up(uuid)
    return uuid


@pytest.fixture
def blue(front: Front) -> Network:
    return make_network(front.database, "10.0.0.0/29", "fd00::/124", name="blue")


def attach(front: Front, server: str, headers: dict[str, str] | None = None, **asked: Any) -> falcon.testing.Result:
    body = {"interfaceAttachment": asked} if asked else {}
    return front.client.simulate_post(f"/v2.1/servers/{server}/os-interface", headers=headers or NEW, json=body)


def detach(front: Front, server: str, port_id: str, headers: dict[str, str] | None = None) -> falcon.testing.Result:
    return front.client.simulate_delete(f"/v2.1/servers/{server}/os-interface/{port_id}", headers=headers or NEW)


def interfaces(front: Front, server: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = front.get(f"/v2.1/servers/{server}/os-interface", NEW).json["interfaceAttachments"]
    return found


def told(front: Front, server: str, state: str = "done", more: int = 0) -> None:
    """The host has carried out the task, its cell has told, and a sweep has read it."""
    asked = the_operation(front, server)
    write(front, server, task_number=asked.number + more, task_state=state)
    front.database.write(steps.finish_tasks, [asked.uuid], 1.0)


def attached(front: Front, server: str, **asked: Any) -> Port:
    answer = attach(front, server, **asked)
    assert answer.status_code == 200, answer.text
    told(front, server)
    return ports_of(front.database, server)[server][-1]


def test_an_interface_is_attached(front: Front, server: str, blue: Network) -> None:
    answer = attach(front, server, TENANT | at("2.70"), tag="front")
    assert answer.status_code == 200, answer.text
    [port] = ports_of(front.database, server)[server]
    made = answer.json["interfaceAttachment"]
    assert (made["mac_addr"], made["net_id"], made["tag"], made["port_state"]) == (port.mac, blue.uuid, "front", "BUILD")
    [listed_port] = front.get("/network/v2.0/ports", TENANT).json["ports"]
    assert (listed_port["id"], listed_port["status"]) == (made["port_id"], "BUILD")
    assert [each["ip_address"] for each in made["fixed_ips"]] == [each.address for each in port.addresses]
    assert interfaces(front, server) == [made]
    asked = the_operation(front, server)
    assert (asked.kind, asked.args.mac, asked.state) == (OperationKind.ATTACH_INTERFACE, port.mac, OperationState.TASK)
    found = shown(front, server)
    assert (found["status"], found["OS-EXT-STS:task_state"]) == ("ACTIVE", None)
    assert [each["addr"] for each in found["addresses"]["blue"]] == [each.address for each in port.addresses]
    [listed] = front.get("/v2.1/servers/detail", TENANT).json["servers"]
    assert "blue" in listed["addresses"]
    told(front, server)
    assert interfaces(front, server) == [made | {"port_state": "ACTIVE"}]
    [listed] = front.get("/v2.1/servers/detail", TENANT).json["servers"]
    assert "blue" in listed["addresses"], "also after the operation"
    [newest, _] = front.get(f"/v2.1/servers/{server}/os-instance-actions", NEW).json["instanceActions"]
    assert (newest["action"], newest["message"]) == ("attach_interface", None)


def test_an_interface_is_detached(front: Front, server: str, blue: Network) -> None:
    first, second = attached(front, server), attached(front, server, net_id=blue.uuid)
    assert first.mac != second.mac
    one, other = (each["port_id"] for each in interfaces(front, server))
    answer = detach(front, server, one)
    assert (answer.status_code, answer.text) == (202, "")
    assert len(interfaces(front, server)) == 2, "until its cell has told that the guest is without it"
    told(front, server)
    assert [each["port_id"] for each in interfaces(front, server)] == [other]
    assert used(front.database) == 2
    assert refusal(detach(front, server, one), 404)
    [newest, *_] = front.get(f"/v2.1/servers/{server}/os-instance-actions", NEW).json["instanceActions"]
    assert newest["action"] == "detach_interface"


def test_an_address_is_asked_for(front: Front, server: str, blue: Network) -> None:
    fixed = [{"ip_address": "10.0.0.5"}]
    port = attached(front, server, net_id=blue.uuid, fixed_ips=fixed)
    assert port.addresses[0].address == "10.0.0.5"
    assert "already in use" in refusal(attach(front, server, net_id=blue.uuid, fixed_ips=fixed), 409)
    outside = [{"ip_address": "192.0.2.1"}]
    assert "not a valid ip address" in refusal(attach(front, server, net_id=blue.uuid, fixed_ips=outside), 400)
    assert "net_id: must be given" in refusal(attach(front, server, fixed_ips=fixed), 400)


def test_without_a_network_there_is_nothing_to_attach(front: Front, server: str) -> None:
    assert "There is no network" in refusal(attach(front, server), 400)


def test_an_empty_pool_refuses(front: Front, server: str) -> None:
    tiny = make_network(front.database, "10.0.0.0/30", name="tiny")
    attached(front, server, net_id=tiny.uuid)
    assert "No more fixed IP addresses" in refusal(attach(front, server), 409)
    assert len(interfaces(front, server)) == 1
    assert act(front, server, "os-stop").status_code == 202, "nothing was left open"


def test_what_is_not_there_is_refused(front: Front, server: str, blue: Network) -> None:
    make_network(front.database, "10.0.1.0/29", name="red")
    theirs = make_network(front.database, "10.0.2.0/29", name="theirs", project_ids=("other",))
    assert refusal(attach(front, server, net_id=UNKNOWN), 404)  # from now on this process knows of red
    assert "Multiple possible networks" in refusal(attach(front, server), 400)
    assert refusal(attach(front, server, net_id=theirs.uuid), 404)
    assert f"Port {UNKNOWN} could not be found" in refusal(attach(front, server, port_id=UNKNOWN), 404)
    assert refusal(detach(front, server, UNKNOWN), 404)
    assert attach(front, server, TENANT | at("2.48"), net_id=theirs.uuid, tag="x").status_code == 400
    assert attach(front, server, net_id="blue").status_code == 400
    assert attach(front, server, READER).status_code == 403
    assert attach(front, server, OTHER_TENANT).status_code == 404
    assert used(front.database) == 0


@pytest.mark.parametrize(
    ("power", "status"),
    [(Power.ON, 200), (Power.OFF, 200), (Power.PAUSED, 200), (Power.SUSPENDED, 409), (Power.RESCUED, 409)],
)
def test_the_states_in_which_it_is_attached(front: Front, server: str, blue: Network, power: Power, status: int) -> None:
    write(front, server, power=power)
    assert attach(front, server).status_code == status
    assert used(front.database) == (2 if status == 200 else 0)


def test_a_second_change_waits_for_the_first(front: Front, server: str, blue: Network) -> None:
    assert attach(front, server).status_code == 200
    first = threading.Thread(target=told, args=(front, server))
    first.start()
    assert attach(front, server).status_code == 200
    first.join()
    assert len(interfaces(front, server)) == 2


def test_locked_servers_and_servers_with_open_operations_refuse(
    front: Front, server: str, blue: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.servers.operate.END_WAIT_S", 0.1)
    attached(front, server)
    [port] = interfaces(front, server)
    assert act(front, server, "lock", None, NEW).status_code == 202
    assert "is locked" in refusal(attach(front, server), 409)
    assert "is locked" in refusal(detach(front, server, port["port_id"]), 409)
    assert act(front, server, "unlock", None, NEW).status_code == 202
    assert detach(front, server, port["port_id"]).status_code == 202
    assert "while its detach-interface is in state task" in refusal(attach(front, server), 409)


def test_a_failed_attach_returns_its_address(front: Front, server: str, blue: Network) -> None:
    assert attach(front, server).status_code == 200
    told(front, server, "failed")
    assert (used(front.database), the_operation(front, server).state) == (2, OperationState.STARTING)
    write(front, server, task_number=the_operation(front, server).number + 3, task_state="ordered")
    front.database.write(steps.finish_tasks, [the_operation(front, server).uuid], 1.0)
    assert used(front.database) == 2, "its host has not answered"
    told(front, server, more=3)
    assert (used(front.database), interfaces(front, server)) == (0, [])
    assert attach(front, server).status_code == 200


def test_an_address_that_cannot_be_detached_stays(front: Front, server: str, blue: Network) -> None:
    assert attach(front, server).status_code == 200
    told(front, server, "failed")
    told(front, server, "failed", more=3)
    [port] = interfaces(front, server)
    assert front.get("/v2.1/servers/detail", NEW).json["servers"][0]["status"] == "ERROR"
    assert act(front, server, "os-stop").status_code == 202
    write(front, server, power="off")
    told(front, server)
    assert detach(front, server, port["port_id"]).status_code == 202


def test_a_deleted_server_frees_what_was_being_attached(front: Front, server: str, blue: Network) -> None:
    assert attach(front, server).status_code == 200
    assert front.delete(server, TENANT).status_code == 204
    assert used(front.database) == 2, "its guest may have it"


def test_a_network_with_an_interface_is_not_deleted(front: Front, server: str, blue: Network) -> None:
    attached(front, server)
    with pytest.raises(Exception, match="in use"):
        front.database.write(networks.delete, blue.uuid)
