"""How many more servers fit: what a real scheduler counts, with nothing changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon.testing
import pytest

from api.opts import ApiSettings
from db.api import aggregates, flavors
from objects.flavor import Flavor
from rpc.scheduler import FLAVORS_LIMIT
from tests.support import fleet
from tests.support.api import IMAGE, TENANT, Front
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
    answer = ask(front, query)
    assert answer.status_code == 200, answer.text
    assert contents(front) == before
    return answer.json["capacity"]


def fault(answer: falcon.testing.Result, status: int) -> str:
    assert answer.status_code == status, answer.text
    (found,) = json.loads(answer.text).values()
    return str(found["message"])


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
    [without] = told(front, "flavor=big&without_host=H1&without_host=h3")["flavors"]
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
        ("flavor=none", "flavor: flavor 'none' could not be found"),
        ("flavor=3", "flavor: flavor '3' could not be found"),
        ("flavor=big&without_cell=nowhere", "without_cell: there is no cell 'nowhere'"),
        ("flavor=big&without_host=h9", "Compute host h9 could not be found"),
        ("flavor=big&without_hosts=h1", "without_hosts: is no parameter"),
        ("&".join(["flavor=big"] * (FLAVORS_LIMIT + 1)), "flavor: may be given 16 times at most"),
        ("flavor=big%00", "control character"),
    ],
)
def test_bad_questions_are_refused(front: Front, query: str, words: str) -> None:
    assert words in fault(ask(front, query), 400)


def test_members_are_refused(front: Front) -> None:
    assert "superconductor:capacity" in fault(ask(front, "flavor=big", TENANT), 403)


def test_a_scheduler_that_is_away_or_new_is_told(lonely: Front) -> None:
    assert "No scheduler answers" in fault(ask(lonely, "flavor=big"), 503)
    with scheduler_of(lonely, FAST.__replace__(warm_up=60.0)):
        assert told(lonely, "flavor=big")["early"]
