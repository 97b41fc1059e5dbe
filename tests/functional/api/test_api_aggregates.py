"""Host aggregates and availability zones over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon.testing
import pytest

from db.api.deployment import host_mappings
from db.cell import services
from objects.cell import HostMapping
from objects.process import AGENT_BINARY
from tests.support import fleet
from tests.support.api import CELL1_UUID, NEWEST, TENANT, Front, refusal, with_status
from tests.support.databases import SERVERS
from tests.support.fleet import QUICK, Site
from tests.support.fronts import databases_of

PATH = "/v2.1/os-aggregates"
ADMIN = NEWEST | TENANT | {"X-Roles": "admin"}
OLD = TENANT | {"X-Roles": "admin"}
READER = NEWEST | TENANT | {"X-Roles": "reader"}


@pytest.fixture(params=SERVERS)
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    with databases_of(request.param, tmp_path) as ground:
        made = Front(ground)
        for host in ("h1", "h2"):
            made.database.write(host_mappings.add_mappings, [HostMapping(host=host, cell_uuid=CELL1_UUID)], 0.0)
            made.cell.write(services.record_heartbeats, [services.Beat(host=host, binary=AGENT_BINARY)])
        made.registry.refresh_cells()
        yield made
        made.close()


def create(front: Front, headers: dict[str, str] = ADMIN, **fields: Any) -> falcon.testing.Result:
    return front.client.simulate_post(PATH, headers=headers, json={"aggregate": {"name": "rack"} | fields})


def act(front: Front, number: int, action: str, value: Any, headers: dict[str, str] = ADMIN) -> falcon.testing.Result:
    return front.client.simulate_post(f"{PATH}/{number}/action", headers=headers, json={action: value})


def test_the_life_of_an_aggregate(front: Front) -> None:
    made = with_status(create(front, availability_zone="north"), 200)
    aggregate = made.json["aggregate"]
    assert aggregate.keys() == {"id", "uuid", "name", "availability_zone", "created_at", "updated_at", "deleted", "deleted_at"}
    assert (aggregate["availability_zone"], aggregate["updated_at"]) == ("north", None)
    number = aggregate["id"]
    added = act(front, number, "add_host", {"host": "h1"})
    assert added.json["aggregate"]["hosts"] == ["h1"]
    changed = act(front, number, "set_metadata", {"metadata": {"ssd": "true"}})
    assert changed.json["aggregate"]["metadata"] == {"availability_zone": "north", "ssd": "true"}
    assert act(front, number, "set_metadata", {"metadata": {"ssd": None}}).json["aggregate"]["metadata"] == {
        "availability_zone": "north"
    }
    renamed = front.client.simulate_put(
        f"{PATH}/{number}", headers=ADMIN, json={"aggregate": {"name": "row", "availability_zone": None}}
    )
    assert (renamed.json["aggregate"]["name"], renamed.json["aggregate"]["availability_zone"]) == ("row", None)
    assert renamed.json["aggregate"]["updated_at"] is not None
    assert front.get(PATH, ADMIN).json["aggregates"] == [renamed.json["aggregate"]]
    assert front.get(f"{PATH}/{number}", ADMIN).json == renamed.json
    assert "still has 1 hosts" in refusal(front.client.simulate_delete(f"{PATH}/{number}", headers=ADMIN), 409)
    assert act(front, number, "remove_host", {"host": "h1"}).json["aggregate"]["hosts"] == []
    assert front.client.simulate_delete(f"{PATH}/{number}", headers=ADMIN).status_code == 200
    assert front.get(f"{PATH}/{number}", ADMIN).status_code == 404


def test_versions_before_uuids_have_none(front: Front) -> None:
    assert "uuid" not in create(front, OLD).json["aggregate"]
    (one,) = front.get(PATH, OLD).json["aggregates"]
    assert "uuid" not in one
    assert one["hosts"] == []


def test_what_is_wrong_is_refused(front: Front) -> None:
    number = create(front).json["aggregate"]["id"]
    other = create(front, name="other", availability_zone="south").json["aggregate"]["id"]
    assert "rack" in refusal(create(front), 409)
    assert "nowhere could not be found" in refusal(act(front, number, "add_host", {"host": "nowhere"}), 404)
    assert "H1 could not be found" in refusal(act(front, number, "add_host", {"host": "H1"}), 404)
    act(front, number, "add_host", {"host": "h1"})
    assert "already" in refusal(act(front, number, "add_host", {"host": "h1"}), 409)
    act(front, other, "add_host", {"host": "h1"})
    refusal(act(front, number, "set_metadata", {"metadata": {"availability_zone": "west"}}), 409)
    refusal(act(front, number, "remove_host", {"host": "h2"}), 404)
    refusal(act(front, 999, "add_host", {"host": "h1"}), 404)
    refusal(act(front, number, "explode", {}), 400)
    refusal(act(front, number, "set_metadata", {"metadata": {"ssd": 1}}), 400)
    refusal(create(front, name="a", availability_zone="a:b"), 400)
    refusal(create(front, color="blue"), 400)
    refusal(front.client.simulate_put(f"{PATH}/{number}", headers=ADMIN, json={"aggregate": {}}), 400)
    for wrong in ("rack", "1.5", "-", "--1"):
        refusal(front.get(f"{PATH}/{wrong}", ADMIN), 400)
    for nobody in ("9" * 30, "-1", "0" * 30):
        refusal(front.get(f"{PATH}/{nobody}", ADMIN), 404)


def test_zones_of_hosts_with_servers_are_kept(front: Front) -> None:
    number = create(front, availability_zone="north").json["aggregate"]["id"]
    act(front, number, "add_host", {"host": "h1"})
    other = create(front, name="other", availability_zone="south").json["aggregate"]["id"]
    site = Site(front.database, [fleet.node("h1"), fleet.node("h2")])
    for _ in range(2):
        site.boot(site.scheduler(QUICK))
    assert set(site.claimed().values()) == {"h1", "h2"}
    one = f"{PATH}/{number}"
    for zone in ("west", None):
        renamed = front.client.simulate_put(one, headers=ADMIN, json={"aggregate": {"availability_zone": zone}})
        assert "move them away" in refusal(renamed, 409)
        refusal(act(front, number, "set_metadata", {"metadata": {"availability_zone": zone}}), 409)
    refusal(act(front, number, "remove_host", {"host": "h1"}), 409)
    refusal(act(front, other, "add_host", {"host": "h2"}), 409)
    assert act(front, number, "set_metadata", {"metadata": {"availability_zone": "north", "ssd": "true"}}).status_code == 200
    assert front.client.simulate_put(one, headers=ADMIN, json={"aggregate": {"name": "row"}}).status_code == 200


def test_members_may_not(front: Front) -> None:
    member = NEWEST | TENANT
    number = create(front).json["aggregate"]["id"]
    refusal(create(front, member, name="mine"), 403)
    refusal(front.get(PATH, member), 403)
    refusal(act(front, number, "add_host", {"host": "h1"}, member), 403)


def test_zones_of_hosts(front: Front) -> None:
    number = create(front, availability_zone="north").json["aggregate"]["id"]
    act(front, number, "add_host", {"host": "h1"})
    front.cell.write(services.set_disabled, "h1", AGENT_BINARY, True, "repair", 0.0)
    zones = front.get("/v2.1/os-availability-zone", READER).json["availabilityZoneInfo"]
    assert zones == [
        {"zoneName": "north", "zoneState": {"available": False}, "hosts": None},
        {"zoneName": "nova", "zoneState": {"available": True}, "hosts": None},
    ]
    refusal(front.get("/v2.1/os-availability-zone/detail", READER), 403)
    detail = front.get("/v2.1/os-availability-zone/detail", ADMIN).json["availabilityZoneInfo"]
    assert [zone["zoneName"] for zone in detail] == ["internal", "north", "nova"]
    agent = detail[1]["hosts"]["h1"]["nova-compute"]
    assert (agent["active"], agent["available"]) == (False, True)
    assert detail[2]["hosts"]["h2"]["nova-compute"]["active"]
