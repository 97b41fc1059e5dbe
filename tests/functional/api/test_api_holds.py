"""Holds over HTTP, with a real scheduler and the super conductor's own code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon.testing
import pytest

from api.opts import ApiSettings
from conductor.build import Builder
from conductor.context import ConductorContext
from db.api.deployment import aggregates
from db.api.projects import flavors, quotas
from db.sql.connection import ApiTransaction
from objects import errors
from objects.flavor import Flavor
from objects.quota import OwnLimits
from rpc.scheduler import SchedulerClient
from service.periodic import wait_until
from tests.support import fleet
from tests.support.api import IMAGE, NEWEST, TENANT, Front, with_status
from tests.support.deciding import add_hosts, scheduler_of

PATH = "/v2.1/superconductor/holds"
UNKNOWN = "3d4f8c5e-0000-4000-8000-000000000000"
NODES = [fleet.node(f"h{n}", vcpus=4 + 4 * n, memory_mb=65536) for n in range(4)]
TENANT_ADMIN = {"X-Project-Id": "p1", "X-Roles": "admin"}
PATIENCE = 90.0


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    made = Front(tmp_path, ApiSettings(max_hold_seconds=900, max_holds=3))
    made.database.write(flavors.create, Flavor(flavor_id="big", name="m1.big", vcpus=6, memory_mb=8192))
    add_hosts(made, NODES)
    with scheduler_of(made):
        yield made
    made.close()


def body(hints: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"server": {"name": "web", "flavorRef": "big", "imageRef": IMAGE} | fields} | (
        {"os:scheduler_hints": hints} if hints else {}
    )


def ask(front: Front, seconds: str | None = "600", headers: dict[str, str] | None = None, **fields: Any) -> falcon.testing.Result:
    params = {} if seconds is None else {"seconds": seconds}
    return front.client.simulate_post(PATH, headers=headers, params=params, json=body(**fields))


def conduct(front: Front, batch_id: str) -> None:
    """All that a super conductor does for the batch now."""
    context = ConductorContext(front.ledger, front.registry)
    builder = Builder(context, SchedulerClient(front.bus), owner="test", lease_seconds=0.0, retry_pause=0.0)
    builder.schedule_and_build([batch_id])


def hold(front: Front, **fields: Any) -> Any:
    """A hold with its hosts."""
    answer = with_status(ask(front, **fields), 202)
    conduct(front, answer.json["hold"]["id"])
    return show(front, answer.json["hold"]["id"])


def show(front: Front, hold_id: str) -> Any:
    return front.get(f"{PATH}/{hold_id}").json["hold"]


def boot(front: Front, hold_id: str, headers: dict[str, str] | None = None) -> falcon.testing.Result:
    return front.client.simulate_post(f"{PATH}/{hold_id}/boot", headers=headers)


def message(answer: falcon.testing.Result, status: int) -> str:
    assert answer.status_code == status, answer.text
    (found,) = json.loads(answer.text).values()
    return str(found["message"])


def hosts_of(shown: Any) -> list[Any]:
    return [server["host"] for server in shown["servers"]]


def hosts_with_room(front: Front) -> int:
    """On how many hosts the scheduler would place a small server: what it knows of the fleet."""
    return int(front.get("/v2.1/superconductor/capacity", flavor="1").json["capacity"]["flavors"][0]["hosts"])


def mapped_hosts(front: Front, shown: Any) -> list[str]:
    """Where its servers were handed over."""
    return [
        front.get(f"/v2.1/servers/{server['id']}", NEWEST).json["server"]["OS-EXT-SRV-ATTR:host"] for server in shown["servers"]
    ]


def test_servers_of_a_hold_get_its_hosts(front: Front) -> None:
    answer = ask(front, max_count=3, min_count=3)
    made = answer.json["hold"]
    assert (made["state"], [server["name"] for server in made["servers"]]) == ("placing", ["web-1", "web-2", "web-3"])
    conduct(front, made["id"])
    held = show(front, made["id"])
    assert (held["state"], held["project_id"]) == ("held", made["project_id"])
    assert all(server["held"] and server["cell"] == "cell1" and server["fault"] is None for server in held["servers"])
    assert [each["id"] for each in front.get(PATH).json["holds"]] == [made["id"]]
    assert front.get(f"/v2.1/servers/{held['servers'][0]['id']}").json["server"]["status"] == "BUILD"
    assert [hosts_of(each) for each in front.get(PATH).json["holds"]] == [hosts_of(held)]
    assert boot(front, held["id"]).status_code == 202
    conduct(front, held["id"])
    assert mapped_hosts(front, held) == hosts_of(held)
    told = front.get(f"/v2.1/servers/{held['servers'][0]['id']}/explanation").json["explanation"]
    assert told["decisions"], "the decision of the hold is the server's"
    assert front.get(PATH).json["holds"] == []


def test_it_is_booted_once(front: Front) -> None:
    held = hold(front)
    assert boot(front, held["id"]).status_code == 202
    assert "was booted" in message(boot(front, held["id"]), 409)
    assert "was booted" in message(front.client.simulate_delete(f"{PATH}/{held['id']}"), 409)
    assert "was booted" in message(front.get(f"{PATH}/{held['id']}"), 409)


def test_a_release_frees_hosts_and_quota(front: Front) -> None:
    front.database.write(quotas.change_limits, "p1", OwnLimits(instances=3))
    held = hold(front, max_count=3, min_count=3, headers=TENANT_ADMIN)
    assert "Quota exceeded" in message(ask(front, headers=TENANT_ADMIN), 403)
    assert front.client.simulate_delete(f"{PATH}/{held['id']}").status_code == 204
    assert "could not be found" in message(boot(front, held["id"]), 404)
    assert "could not be found" in message(front.client.simulate_delete(f"{PATH}/{held['id']}"), 404)
    assert hold(front, max_count=3, min_count=3, headers=TENANT_ADMIN)["state"] == "held"


def test_what_fits_nowhere_is_refused_with_the_reason(front: Front) -> None:
    refused = hold(front, max_count=9, min_count=9)
    assert refused["state"] == "refused"
    assert all("No valid host" in server["fault"] and server["host"] is None for server in refused["servers"])
    assert front.client.simulate_delete(f"{PATH}/{refused['id']}").status_code == 204
    assert front.get("/v2.1/servers").json["servers"] == []


@pytest.mark.parametrize("seconds", [None, "0", "901", "-1", "1.5", "x"])
def test_its_time_is_limited(front: Front, seconds: str | None) -> None:
    assert message(ask(front, seconds), 400).startswith("seconds: ")


def test_there_may_be_none_and_only_so_many(front: Front, tmp_path: Path) -> None:
    for _ in range(3):
        assert ask(front).status_code == 202
    assert "[api] max_holds" in message(ask(front), 403)
    closed = Front(tmp_path / "closed", ApiSettings(max_hold_seconds=0))
    assert "[api] max_hold_seconds is 0" in message(ask(closed), 403)
    closed.close()


def test_a_key_of_the_client_makes_one_hold(front: Front) -> None:
    key = {"Idempotency-Key": "one"}
    first, second = ask(front, headers=key), ask(front, headers=key)
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json["hold"] == second.json["hold"]


def test_holds_are_an_administrators(front: Front) -> None:
    held = hold(front)
    for method, path in (
        ("POST", PATH),
        ("GET", PATH),
        ("GET", f"{PATH}/{held['id']}"),
        ("POST", f"{PATH}/{held['id']}/boot"),
        ("DELETE", f"{PATH}/{held['id']}"),
    ):
        assert "superconductor:holds" in message(front.client.simulate_request(method, path, headers=TENANT), 403)


@pytest.mark.parametrize("hold_id", [UNKNOWN, "x", f"r-{UNKNOWN.replace('-', '')}"])
def test_unknown_holds(front: Front, hold_id: str) -> None:
    for answer in (front.get(f"{PATH}/{hold_id}"), boot(front, hold_id), front.client.simulate_delete(f"{PATH}/{hold_id}")):
        assert "could not be found" in message(answer, 404)


class TestHostsThatChanged:
    """While the hold was open. The others keep their servers."""

    def booted(self, front: Front, held: Any) -> list[str]:
        assert boot(front, held["id"]).status_code == 202

        def handed_over() -> bool:
            conduct(front, held["id"])
            return all(mapped_hosts(front, held))

        assert wait_until(handed_over, PATIENCE)
        return mapped_hosts(front, held)

    def test_a_disabled_host_is_replaced(self, front: Front) -> None:
        held = hold(front, max_count=2, min_count=2)
        gone, other = hosts_of(held)
        assert gone != other
        put(front, gone, status="disabled")
        assert wait_until(lambda: hosts_with_room(front) == len(NODES) - 1, PATIENCE)
        found = self.booted(front, held)
        assert (found[0] == gone, found[1]) == (False, other)
        told = front.get(f"/v2.1/servers/{held['servers'][0]['id']}/explanation").json["explanation"]
        assert told["decisions"][-1]["basis"]["excluded_hosts"] == [gone]

    def test_a_held_host_stays_in_its_zone(self, front: Front) -> None:
        for host in ("h2", "h3"):
            front.database.write(_put_east, host)
        assert wait_until(lambda: "east" in front.get("/v2.1/os-availability-zone").text, PATIENCE)
        assert wait_until(lambda: ask(front, availability_zone="east", name="x").status_code == 202, PATIENCE)
        held = hold(front, availability_zone="east")
        [host] = hosts_of(held)
        east = front.database.read(aggregates.find_by_name, f"east-{host}")
        with pytest.raises(errors.Conflict, match="stays in zone 'east'"):
            front.database.write(aggregates.remove_host, east.id, host)
        assert self.booted(front, held) == [host]

    def test_without_another_host_it_ends_with_the_reason(self, front: Front) -> None:
        held = hold(front, availability_zone="nova:h3")
        put(front, "h3", forced_down=True)
        assert boot(front, held["id"]).status_code == 202

        def ended() -> bool:
            conduct(front, held["id"])
            return bool(front.get(f"/v2.1/servers/{held['servers'][0]['id']}").json["server"]["status"] == "ERROR")

        assert wait_until(ended, PATIENCE)


def put(front: Front, host: str, **fields: Any) -> None:
    found = front.get("/v2.1/os-services", NEWEST, host=host, binary="nova-compute").json["services"]
    assert front.client.simulate_put(f"/v2.1/os-services/{found[0]['id']}", headers=NEWEST, json=fields).status_code == 200


def _put_east(tx: ApiTransaction, host: str) -> None:
    made = aggregates.create(tx, f"east-{host}", {"availability_zone": "east"})
    aggregates.add_host(tx, made.id, host)
