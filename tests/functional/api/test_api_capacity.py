"""How many more servers fit: what a real scheduler counts, with nothing changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon.testing
import pytest

from api.opts import ApiSettings
from db.api.claims import server_groups
from db.api.deployment import aggregates
from db.api.projects import flavors
from objects.flavor import Flavor
from objects.group import GroupPolicy
from rpc.scheduler import FLAVORS_LIMIT
from tests.support import fleet
from tests.support.api import IMAGE, TENANT, Front, refusal, with_status
from tests.support.deciding import FAST, add_hosts, contents, decide, scheduler_of

PATH = "/v2.1/superconductor/capacity"


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[Front]:
    """Without a scheduler. Three hosts of 8, 12 and 16 vCPUs."""
    made = Front(tmp_path, ApiSettings(cell_timeout=1.0))
    made.database.write(flavors.create, Flavor(flavor_id="big", name="m1.big", vcpus=6, memory_mb=8192))
    made.database.write(flavors.create, Flavor(flavor_id="flat", name="m1.flat", vcpus=1, memory_mb=16384))
    add_hosts(made, [fleet.node(f"h{n}", vcpus=4 + 4 * n) for n in (1, 2, 3)])
    north = made.database.write(aggregates.create, "north", {"availability_zone": "north"})
    for host in ("h1", "h2"):
        made.database.write(aggregates.add_host, north.id, host)
    yield made
    made.close()


@pytest.fixture
def front(lonely: Front) -> Iterator[Front]:
    with scheduler_of(lonely):
        yield lonely


def ask(front: Front, query: str, headers: dict[str, str] | None = None) -> falcon.testing.Result:
    return front.client.simulate_get(PATH, headers=headers, query_string=query)


def told(front: Front, query: str) -> Any:
    """The answer, before and after which the databases are the same."""
    before = contents(front)
    answer = with_status(ask(front, query), 200)
    assert contents(front) == before
    return answer.json["capacity"]


def test_as_many_fit_as_are_said(front: Front) -> None:
    found = told(front, "flavor=m1.big")
    [big] = found["flavors"]
    assert (big["servers"], big["hosts"], found["hosts"], found["sets"]) == (5, 3, 3, None)
    assert [(each["name"], each["servers"]) for each in big["cells"]] == [("cell1", 5)]
    assert [(each["name"], each["servers"], each["hosts"]) for each in big["zones"]] == [("north", 3, 2), ("nova", 2, 1)]
    assert [(each["name"], each["servers"]) for each in big["aggregates"]] == [("north", 3)]
    assert big["limits"] == {"CoreFilter": 3}
    server = {"name": "web", "flavorRef": "big", "imageRef": IMAGE, "min_count": 4, "max_count": 4}
    assert front.post({"server": server}).status_code == 202
    assert len(decide(front)) == 4
    [left] = told(front, "flavor=big")["flavors"]
    assert left["servers"] == 1, "the claims are seen at once, although they were made just now"


def test_what_is_left_out_counts_no_more(front: Front) -> None:
    [without] = told(front, "flavor=big&without_host=h1&without_host=h3")["flavors"]
    assert (without["servers"], without["hosts"]) == (2, 1)
    assert ("IgnoreHosts", 1) in [(each["name"], each["after"]) for each in without["filters"]]
    [none] = told(front, "flavor=big&without_cell=cell1")["flavors"]
    assert (none["servers"], none["limits"]) == (0, {})


def test_several_flavors_have_bounds_together(front: Front) -> None:
    found = told(front, "flavor=big&flavor=flat")
    assert [each["servers"] for each in found["flavors"]] == [5, 12]
    assert found["sets"] == {"least": 4, "most": 5}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "flavor: name one"),
        ("flavor=none", "flavor: 'none' could not be found"),
        ("flavor=3", "flavor: '3' could not be found"),
        ("flavor=big&without_cell=nowhere", "without_cell: there is no cell 'nowhere'"),
        ("flavor=big&without_host=h9", "Compute host h9 could not be found"),
        ("flavor=big&without_hosts=h1", "without_hosts: is no parameter"),
        ("&".join(["flavor=big"] * (FLAVORS_LIMIT + 1)), "flavor: may be given 16 times at most"),
        ("flavor=big%00", "control character"),
    ],
)
def test_bad_questions_are_refused(front: Front, query: str, words: str) -> None:
    assert words in refusal(ask(front, query), 400)


def test_members_are_refused(front: Front) -> None:
    assert "superconductor:capacity" in refusal(ask(front, "flavor=big", TENANT), 403)


def test_an_absent_or_new_scheduler_is_reported(lonely: Front) -> None:
    assert "No scheduler answers" in refusal(ask(lonely, "flavor=big"), 503)
    with scheduler_of(lonely, FAST.__replace__(warm_up=60.0)):
        assert told(lonely, "flavor=big")["early"]


def boot(front: Front, name: str, host: str, flavor: str = "big", count: int = 1, **hints: str) -> None:
    """Servers whose claims are on this host."""
    server = {"name": name, "flavorRef": flavor, "imageRef": IMAGE, "availability_zone": f":{host}"}
    body = {"server": server | {"min_count": count, "max_count": count}, "os:scheduler_hints": hints}
    assert front.post(body).status_code == 202
    assert decide(front) == [host] * count


def test_servers_of_lost_hosts_move_where_they_fit(front: Front) -> None:
    """And what is asked for is counted after them."""
    boot(front, "large", "h3", count=2)
    boot(front, "tiny", "h3", "1", count=2)
    found = told(front, "flavor=1&lost_host=h3")
    assert found["loss"] == {"hosts": 1, "servers": 4, "placed": 4, "stranded": []}
    assert found["flavors"][0]["servers"] == 6
    boot(front, "other", "h2", count=1)
    found = told(front, "flavor=1&lost_host=h3")
    assert (found["loss"]["placed"], found["flavors"][0]["servers"]) == (4, 0)
    boot(front, "last", "h1", count=1)
    loss = told(front, "flavor=big&lost_host=h3")["loss"]
    assert loss["placed"] == 3
    [stranded] = loss["stranded"]
    assert (stranded["name"][:5], stranded["host"], stranded["flavor"], stranded["project_id"]) == (
        "large",
        "h3",
        "m1.big",
        "admin",
    )
    assert "CoreFilter (not enough vCPUs)" in stranded["reason"]


def test_zones_and_cells_can_be_lost(front: Front) -> None:
    boot(front, "web", "h1")
    zone = told(front, "flavor=big&lost_zone=north")
    assert zone["loss"] == {"hosts": 2, "servers": 1, "placed": 1, "stranded": []}
    assert zone["flavors"][0]["servers"] == 1
    cell = told(front, "flavor=big&lost_cell=cell1")
    assert (cell["loss"]["hosts"], cell["loss"]["placed"], cell["flavors"][0]["servers"]) == (3, 0, 0)


def test_racks_can_be_lost(front: Front) -> None:
    for rack, hosts in (("r1", ("h1", "h2")), ("r2", ("h3",))):
        made = front.database.write(aggregates.create, f"rack {rack}", {"rack": rack})
        for host in hosts:
            front.database.write(aggregates.add_host, made.id, host)
    boot(front, "web", "h1")
    found = told(front, "flavor=big&lost_rack=r1")
    assert found["loss"] == {"hosts": 2, "servers": 1, "placed": 1, "stranded": []}
    assert found["flavors"][0]["servers"] == 1


def test_groups_and_zones_of_displaced_servers_hold(front: Front) -> None:
    apart = fleet.group(GroupPolicy.ANTI_AFFINITY).__replace__(project_id="admin")
    together = fleet.group(GroupPolicy.AFFINITY).__replace__(project_id="admin")
    for group in (apart, together):
        front.database.write(server_groups.create, group)
    for host in ("h1", "h2", "h3"):
        boot(front, f"apart-{host}", host, "1", group=apart.uuid)
    boot(front, "together", "h3", "1", count=3, group=together.uuid)
    loss = told(front, "flavor=1&lost_host=h3")["loss"]
    assert (loss["placed"], [each["name"] for each in loss["stranded"]]) == (3, ["apart-h3"])
    assert "ServerGroupAntiAffinityFilter" in loss["stranded"][0]["reason"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("lost_zone=nowhere", "lost_zone: zone 'nowhere' could not be found"),
        ("lost_rack=nowhere", "lost_rack: rack 'nowhere' could not be found"),
        ("lost_host=h9", "lost_host: Compute host h9 could not be found"),
        ("lost_cell=nowhere", "lost_cell: there is no cell 'nowhere'"),
        ("lost_cell=cell1&lost_host=h1", "give one of them"),
        ("lost_host=h1&lost_host=h2", "lost_host: may be given 1 times at most"),
    ],
)
def test_a_loss_of_unknown_hosts_is_refused(front: Front, query: str, words: str) -> None:
    assert words in refusal(ask(front, f"flavor=big&{query}"), 400)
