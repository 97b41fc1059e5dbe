"""Dry runs of boots: what a real scheduler would decide, with nothing changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon.testing
import msgspec
import pytest

from api.opts import ApiSettings
from db.api.claims import server_groups
from db.api.deployment import cell_mappings
from db.api.projects import flavors, quotas
from db.api.servers import networks
from objects.cell import CellState
from objects.flavor import Flavor
from objects.group import GroupPolicy
from objects.network import Network, Subnet
from objects.quota import OwnLimits
from tests.support import fleet, region
from tests.support.api import CELL1_UUID, IMAGE, NEWEST, TENANT, Front, refusal, with_status
from tests.support.deciding import FAST, add_hosts, contents, decide, scheduler_of

PATH = "/v2.1/superconductor/dry-run"
UNKNOWN = "3d4f8c5e-0000-4000-8000-000000000000"
NODES = [fleet.node(f"h{n}", vcpus=4 + 4 * n, memory_mb=16384 + 15013 * n + 777 * n * n) for n in range(4)]
"""No two are ever equally good, so that the host of a server does not depend on the request's ID."""


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[Front]:
    """Without a scheduler."""
    made = Front(tmp_path, ApiSettings(cell_timeout=1.0))
    made.database.write(flavors.create, Flavor(flavor_id="big", name="m1.big", vcpus=6, memory_mb=8192))
    add_hosts(made, NODES)
    yield made
    made.close()


@pytest.fixture
def front(lonely: Front) -> Iterator[Front]:
    with scheduler_of(lonely):
        yield lonely


def body(hints: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"server": {"name": "web", "flavorRef": "big", "imageRef": IMAGE} | fields} | (
        {"os:scheduler_hints": hints} if hints else {}
    )


def ask(front: Front, asked: dict[str, Any], headers: dict[str, str] | None = None) -> falcon.testing.Result:
    return front.client.simulate_post(PATH, headers=headers, json=asked)


def told(front: Front, asked: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
    """The answer of a dry run, before and after which the databases are the same."""
    before = contents(front)
    answer = with_status(ask(front, asked, headers), 200)
    assert contents(front) == before
    return answer.json["dry_run"]


def hosts_of(found: Any) -> list[str | None]:
    return [server["host"] for server in found["servers"]]


def test_a_boot_gets_its_dry_runs_hosts(front: Front) -> None:
    """Again and again, until the hosts are full."""
    for count in (1, 3, 1):
        asked = body(min_count=count, max_count=count)
        found = told(front, asked)
        assert (found["outcome"], found["refusals"], found["one_of"]) == ("placed", [], 1)
        assert front.post(asked).status_code == 202
        assert hosts_of(found) == decide(front)
    refused = told(front, body(min_count=9, max_count=9))
    assert (refused["outcome"], hosts_of(refused)) == ("refused", [None] * 9)


def test_servers_show_scores_and_filters_their_remaining_hosts(front: Front) -> None:
    found = told(front, body(max_count=3, min_count=3))
    first, second, third = found["servers"]
    assert [server["name"] for server in found["servers"]] == ["web-1", "web-2", "web-3"]
    assert (first["host"], first["cell"], first["node"], first["availability_zone"]) == ("h3", "cell1", "h3", "nova")
    assert first["score"] == pytest.approx(sum(first["parts"].values()), abs=1e-5)
    assert first["score"] == pytest.approx(found["candidates"][0]["score"], abs=1e-5)
    assert {"RAMWeigher", "CPUWeigher"} <= first["parts"].keys()
    assert first["score"] >= second["score"] >= third["score"]
    assert "h0" not in first["alternates"], "it has too few vCPUs"
    left = {each["name"]: (each["before"], each["after"]) for each in found["filters"]}
    assert left["ComputeFilter"] == (4, 4)
    assert left["CoreFilter"] == (4, 3)
    assert (found["hosts"], found["cells"].keys()) == (4, {"cell1"})
    again = told(front, body(max_count=3, min_count=3))["servers"]
    assert [(each["host"], each["parts"]) for each in again] == [(each["host"], each["parts"]) for each in found["servers"]]


def test_a_refusal_says_what_would_be_enough(front: Front) -> None:
    found = told(front, body(flavorRef="big", availability_zone="nova", min_count=8, max_count=8))
    assert (found["outcome"], hosts_of(found)) == ("refused", [None] * 8)
    assert "CoreFilter (not enough vCPUs)" in found["refusals"][0]
    assert "with 3 servers fewer" in found["would_have_fitted"]
    forced = told(front, body(availability_zone="nova:h0"))
    assert "without a forced host" in forced["would_have_fitted"]
    [mapping] = [each for each in front.database.read(cell_mappings.list_all) if each.uuid == CELL1_UUID]
    front.database.write(cell_mappings.update_mapping, mapping.__replace__(state=CellState.DISABLED))
    closed = told(front, body())
    assert closed["outcome"] == "refused", "the change is seen at once, although it was made just now"
    assert closed["would_have_fitted"] == ["in cell cell1, closed to it"]


def test_hints_that_no_filter_reads_are_told(front: Front) -> None:
    found = told(front, body({"ignore_hosts": ["h1"], "diferent_host": [UNKNOWN], "colour": "red"}))
    assert (found["outcome"], found["unread_hints"]) == ("placed", ["colour", "diferent_host"])
    assert told(front, body())["unread_hints"] == []


def test_two_changes_and_the_largest_flavor_are_named(front: Front) -> None:
    sizes = {"s": (2, 2048), "m": (4, 4096), "private": (8, 8192), "off": (10, 8192), "huge": (99, 10**6)}
    for name, (vcpus, memory_mb) in sizes.items():
        made = Flavor(flavor_id=name, name=name, vcpus=vcpus, memory_mb=memory_mb)
        made = msgspec.structs.replace(made, is_public=name != "private", disabled=name == "off")
        front.database.write(flavors.create, made)
    found = told(front, body(flavorRef="huge"))
    while found["largest_flavor"] is None:  # the scheduler reads flavors every second or so
        time.sleep(0.05)
        found = told(front, body(flavorRef="huge"))
    assert (found["would_have_fitted"], found["largest_flavor"]) == ([], "m1.big")
    assert found["would_have_fitted_together"] == ["with a flavor of 83 vCPUs less and 931584 MiB less memory"]
    [refusal] = found["refusals"]
    assert "The largest flavor that fits is m1.big." in refusal
    assert refusal.endswith("It would have fitted with a flavor of fewer vCPUs and less memory.")


def test_fewer_servers_are_placed_if_allowed(front: Front) -> None:
    found = told(front, body(min_count=1, max_count=8))
    assert found["outcome"] == "partial"
    assert sum(host is not None for host in hosts_of(found)) == 5
    assert "instance 6 of 8" in found["refusals"][0]


def test_a_refusing_quota_is_named_beside_the_hosts(front: Front) -> None:
    front.database.write(quotas.change_limits, "p1", OwnLimits(instances=2))
    for least, outcome, names in ((3, "refused", ["web-1", "web-2", "web-3"]), (1, "placed", ["web-1", "web-2"])):
        found = told(front, body(min_count=least, max_count=3), TENANT | {"X-Roles": "admin"})
        assert (found["outcome"], [server["name"] for server in found["servers"]]) == (outcome, names)
        assert all(hosts_of(found))
        assert ("Quota exceeded for instances" in "".join(found["refusals"])) == (outcome == "refused")


def test_a_network_without_addresses_is_named(front: Front) -> None:
    front.database.write(networks.create, Network(uuid=UNKNOWN, name="small", physical_network="physnet"))
    pool = Subnet(uuid=UNKNOWN, network_id=UNKNOWN, cidr="10.0.0.0/24", ranges=(("10.0.0.10", "10.0.0.11"),))
    front.database.write(networks.add_subnet, pool)
    found = told(front, body(networks=[{"uuid": UNKNOWN}], min_count=3, max_count=3))
    assert (found["outcome"], all(hosts_of(found))) == ("refused", True)
    assert "network small has 2 free, and the request needs 3" in found["refusals"][0]
    assert told(front, body(networks=[{"uuid": UNKNOWN, "fixed_ip": "10.0.0.10"}]))["outcome"] == "placed"
    [reason] = told(front, body(networks=[{"uuid": UNKNOWN, "fixed_ip": "10.0.0.12"}]))["refusals"]
    assert "10.0.0.12 is not in the pool" in reason


def test_groups_hold(front: Front) -> None:
    group = fleet.group(GroupPolicy.ANTI_AFFINITY).__replace__(project_id="admin")
    front.database.write(server_groups.create, group)
    asked = body({"group": group.uuid}, min_count=3, max_count=3)
    found = told(front, asked)
    assert sorted(hosts_of(found)) == ["h1", "h2", "h3"]  # type: ignore[type-var]  # all are texts
    assert front.post(asked).status_code == 202
    assert decide(front) == hosts_of(found)
    more = told(front, body({"group": group.uuid}))
    assert more["outcome"] == "refused"
    assert "without the anti-affinity policy of its server group" in more["would_have_fitted"]


def test_hosts_that_are_equally_good_are_counted(lonely: Front) -> None:
    add_hosts(lonely, [fleet.node(f"equal{n}", vcpus=64, memory_mb=262144) for n in range(3)])
    with scheduler_of(lonely):
        assert told(lonely, body())["one_of"] == 3


def test_a_dry_run_refuses_with_the_boots_words(front: Front) -> None:
    bad: list[dict[str, Any]] = [
        body(flavorRef="none"),
        body(availability_zone="nowhere"),
        body(availability_zone="nova:h9"),
        body({"group": UNKNOWN}),
        body({"query": "no"}),
        body(networks=[{"uuid": UNKNOWN}]),
        body(imageRef=""),
        body(min_count=3, max_count=2),
        body(name=""),
        body(key_name="none"),
        {"server": {}},
        {},
    ]
    for asked in bad:
        for headers in ({}, NEWEST):
            dry, real = ask(front, asked, headers), front.post(asked, headers)
            assert 400 <= real.status_code < 500, asked
            assert (dry.status_code, dry.text) == (real.status_code, real.text)
    assert front.client.simulate_post(PATH, headers={"Content-Type": "application/json"}, body=b"{").status_code == 400


def test_members_and_readers_are_refused(front: Front) -> None:
    for roles in ("member", "reader"):
        assert "superconductor:dry_run" in refusal(ask(front, body(), TENANT | {"X-Roles": roles}), 403)


def test_a_scheduler_that_is_away_is_told_clearly(lonely: Front) -> None:
    before = contents(lonely)
    for _ in range(5):  # the breaker opens
        answer = ask(lonely, body())
        assert "No scheduler answers" in refusal(answer, 503)
        assert answer.headers["Retry-After"]
    assert contents(lonely) == before


def test_a_scheduler_reports_that_hosts_are_unknown(lonely: Front) -> None:
    """Right after its start: a host that is silent may be about to come back."""
    lonely.heartbeat("h3", 1.0)
    with scheduler_of(lonely, FAST.__replace__(warm_up=60.0)):
        assert "not all hosts are known yet" in refusal(ask(lonely, body(min_count=4, max_count=4)), 409)
        assert told(lonely, body())["outcome"] == "placed"


def test_an_all_in_one_follows_its_dry_run(tmp_path: Path) -> None:
    hosts = [region.host("small", vcpus=4), region.host("large", cell="cell2", vcpus=32)]
    with region.region(tmp_path, hosts) as deployment:
        document = {"server": {"name": "web", "flavorRef": "tiny", "imageRef": IMAGE}}
        url = f"{deployment.all.api_endpoint}/superconductor/dry-run"
        found = deployment.http.post(url, json=document, timeout=30).json()["dry_run"]
        assert deployment.named("") == []
        assert (hosts_of(found), found["servers"][0]["cell"]) == (["large"], "cell2")
        server = deployment.wait_for(deployment.boot("web"), "ACTIVE")
        assert server["OS-EXT-SRV-ATTR:host"] == "large"
