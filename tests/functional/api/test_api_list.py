"""Lists: every server once, in order, however the pages fall; filters; who sees what."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import falcon.testing
import pytest
import sqlalchemy as sa

from api.opts import ApiSettings
from db.api.deployment import cell_mappings
from db.api.rows.tables import instance_mappings, request_specs
from db.sql.connection import Connection
from db.sql.counting import StatementCounter
from objects.cell import CellMapping
from objects.instance import FailureClass
from tests.support.api import IMAGE, NEWEST, OTHER_TENANT, TENANT, Front, with_status
from tests.support.fronts import front_fixture

front = front_fixture(ApiSettings(max_limit=20))


def follow(front: Front, path: str, headers: dict[str, str] | None = None) -> Iterator[list[dict[str, Any]]]:
    """Page after page, as the links lead."""
    while True:
        document = front.client.simulate_get(path, headers=headers).json
        yield document["servers"]
        links = document.get("servers_links")
        if not links:
            return
        assert [link["rel"] for link in links] == ["next"]
        parts = urlsplit(links[0]["href"])
        path = f"{parts.path}?{parts.query}"


@pytest.mark.parametrize("limit", [1, 2, 7, 20])
@pytest.mark.parametrize("order", ["", "sort_key=display_name&sort_dir=asc", "sort_key=host&sort_key=created_at&sort_dir=desc"])
def test_pages_hold_every_server_exactly_once(front: Front, limit: int, order: str) -> None:
    """Also where many rows tie in the sort key, and some have none."""
    front.boot("many", max_count=9)
    front.hand_over("h1")
    front.boot("many", max_count=5)
    front.hand_over("h2")
    front.boot("few", max_count=4)
    front.boot("one")
    pages = list(follow(front, f"/v2.1/servers/detail?limit={limit}&{order}"))
    listed = [server["id"] for page in pages for server in page]
    assert len(listed) == len(set(listed)) == 19
    assert set(listed) == set(front.uuids())
    assert all(len(page) == limit for page in pages[:-1])
    assert len(pages[-1]) > 0
    whole = front.client.simulate_get(f"/v2.1/servers/detail?{order}").json["servers"]
    assert [server["id"] for server in whole] == listed


@pytest.mark.parametrize(
    "order", ["", "sort_key=vm_state&sort_key=host&sort_dir=asc", "sort_key=updated_at", "sort_key=task_state"]
)
def test_pages_hold_unchanged_servers_exactly_once(front: Front, order: str) -> None:
    """While others become ACTIVE, fail, come and go between the pages: those, too, that pages end with."""
    front.boot("stays", max_count=8)
    front.hand_over("h1")
    staying = front.uuids()
    front.activate(staying[0])
    front.follow_feed()
    front.boot("changes", max_count=12)
    front.hand_over("h2")
    changing = [uuid for uuid in front.uuids() if uuid not in staying]
    chance = random.Random(2)
    seen: list[str] = []
    for page in follow(front, f"/v2.1/servers?limit=3&{order}"):
        seen += [server["id"] for server in page]
        if changing:
            uuid = seen[-1] if seen[-1] in changing else chance.choice(changing)
            changing.remove(uuid)
            if chance.random() < 0.5:
                front.activate(uuid)
            else:
                front.delete(uuid)
            front.follow_feed()
        front.boot("comes")
    assert [seen.count(uuid) for uuid in staying] == [1] * len(staying)


def test_pages_stay_ordered_while_servers_change(front: Front) -> None:
    """What was there all the time is listed exactly once, whatever happens between the pages."""
    front.boot("stay", max_count=15)
    staying = set(front.uuids())
    chance = random.Random(1)
    seen: list[str] = []
    for page in follow(front, "/v2.1/servers?limit=2"):
        seen += [server["id"] for server in page]
        newcomer = front.boot("come")
        if chance.random() < 0.5:
            front.delete(newcomer)
    assert len(seen) == len(set(seen))
    assert staying <= set(seen)


def test_a_page_never_exceeds_the_service_limit(front: Front) -> None:
    """Without a limit too, and the link leads on."""
    front.boot("many", max_count=25)
    pages = list(follow(front, "/v2.1/servers"))
    assert [len(page) for page in pages] == [20, 5]
    assert [len(page) for page in follow(front, "/v2.1/servers?limit=500")] == [20, 5]
    assert front.get("/v2.1/servers", limit="0").json == {"servers": []}


def test_links_retain_filters_and_the_project_path(front: Front) -> None:
    """It must mean the same list."""
    for name in ("web", "db", "web", "db"):
        front.boot(name, headers=TENANT)
    document = front.client.simulate_get("/v2.1/p1/servers?limit=1&name=web&sort_dir=asc").json
    href = document["servers_links"][0]["href"]
    assert href.startswith("http://falconframework.org/v2.1/p1/servers?")
    assert [len(page) for page in follow(front, href.removeprefix("http://falconframework.org"))] == [1]
    assert document["servers"][0]["links"][0]["href"].startswith("http://falconframework.org/v2.1/p1/servers/")


def names(answer: falcon.testing.Result) -> list[str]:
    assert answer.status_code == 200, answer.text
    return sorted(server["name"] for server in answer.json["servers"])


def test_filters_leave_what_they_say(front: Front) -> None:
    """By status, name, host, zone and uuid."""
    running, failing = front.boot("running"), front.boot("failing")
    front.hand_over("h1", zone="north")
    front.activate(running)
    front.accept(failing)
    front.fail(failing, kind=FailureClass.REQUEST)
    front.follow_feed()
    front.boot("waiting")
    path = "/v2.1/servers/detail"
    assert names(front.get(path, status="ACTIVE")) == ["running"]
    assert names(front.get(path, status="error")) == ["failing"]
    assert names(front.get(path, status="BUILD")) == ["waiting"]
    assert names(front.get(path, status="SHUTOFF")) == []
    assert names(front.get(path, name="ing$")) == ["failing", "running", "waiting"]
    assert names(front.get(path, name="^(run|wait)")) == ["running", "waiting"]
    assert names(front.get(path, host="h1")) == ["failing", "running"]
    assert names(front.get(path, TENANT | {"X-Project-Id": "admin"}, host="h1")) == ["failing", "running", "waiting"]
    assert names(front.get(path, availability_zone="north")) == ["failing", "running"]
    assert names(front.get(path, uuid=failing)) == ["failing"]
    assert names(front.get(path, deleted="False")) == ["failing", "running", "waiting"]
    assert names(front.get(path, deleted="whatever")) == ["failing", "running", "waiting"]
    assert names(front.get(path, task_state="scheduling")) == ["waiting"]
    assert names(front.get(path, power_state="1")) == ["running"]
    assert names(front.get(path, ip="10.0.0.1")) == []
    assert names(front.get(path, locked="True")) == []
    assert names(front.get(path, something="else")) == ["failing", "running", "waiting"]


def test_filters_look_at_what_was_asked_for(front: Front) -> None:
    """By flavor, image, tags and metadata."""
    common = {"flavorRef": "1", "networks": "none", "imageRef": IMAGE}
    for name, more in (("tagged", {"tags": ["a", "b"]}), ("noted", {"metadata": {"role": "web"}}), ("large", {"flavorRef": "2"})):
        assert front.post({"server": common | {"name": name} | more}, NEWEST).status_code == 202
    path = "/v2.1/servers"
    assert names(front.get(path, flavor="2")) == ["large"]
    assert names(front.get(path, flavor="9")) == []
    assert names(front.get(path, image=IMAGE)) == ["large", "noted", "tagged"]
    assert names(front.get(path, image="other")) == []
    assert names(front.get(path, tags="a,b")) == ["tagged"]
    assert names(front.client.simulate_get(f"{path}?not-tags-any=b")) == ["large", "noted"]
    assert names(front.get(path, metadata='{"role": "web"}')) == ["noted"]


def test_the_statements_of_a_page_ignore_cell_count(front: Front, tmp_path: Path) -> None:
    """As the summaries suffice, and no cell is asked: most of these could not even answer."""
    front.boot("first", max_count=3)
    totals = []
    for cells in (2, 10):
        while len(front.registry.list_cells()) < cells:
            uuid = str(uuid4())
            name = f"far-{uuid[:8]}"
            url = f"sqlite:///{tmp_path}/{name}.db"
            mapping = CellMapping(uuid=uuid, name=name, database_url=url, transport_url=f"embedded://{name}/")
            front.database.write(cell_mappings.create, mapping)
            front.registry.refresh_cells()
            front.boot(name, max_count=3)
            front.database.write(_move_to, uuid)
        for query in ("", "sort_key=host&status=BUILD", f"marker={front.uuids()[-1]}"):
            with StatementCounter() as counter:
                assert front.client.simulate_get(f"/v2.1/servers/detail?limit=5&{query}").status_code == 200
            # these go by the clock
            asked = [(database, text) for database, text in counter.count_by_statement() if "epochs" not in text]
            assert {database for database, _ in asked} == {"api"}
            totals.append(len(asked))
    assert totals == 2 * [4, 4, 6]


def _move_to(tx: Connection, cell_uuid: str) -> None:
    tx.execute(sa.update(instance_mappings).where(instance_mappings.c.cell_uuid.is_(None)).values(cell_uuid=cell_uuid))


def test_each_project_lists_its_own(front: Front) -> None:
    """An administrator lists all of them, or any one, when asked to."""
    front.boot("mine", headers=TENANT)
    front.boot("theirs", headers=OTHER_TENANT)
    front.boot("ours")
    assert names(front.get("/v2.1/servers", TENANT)) == ["mine"]
    assert names(front.get("/v2.1/servers", OTHER_TENANT)) == ["theirs"]
    assert names(front.get("/v2.1/p1/servers")) == ["mine"]
    assert names(front.get("/v2.1/servers")) == ["ours"]
    assert names(front.get("/v2.1/servers", all_tenants="True")) == ["mine", "ours", "theirs"]
    assert names(front.get("/v2.1/servers", all_tenants="1", project_id="p2")) == ["theirs"]
    refused = front.get("/v2.1/servers", TENANT, all_tenants="1")
    assert (refused.status_code, refused.json["forbidden"]["code"]) == (403, 403)


def test_deleted_servers_are_listed_to_those_who_ask(front: Front) -> None:
    """By status for an administrator, by changes-since for everyone, and otherwise never."""
    front.boot("stays", headers=TENANT)
    front.delete(front.boot("goes", headers=TENANT), TENANT)
    assert names(front.get("/v2.1/servers", TENANT)) == ["stays"]
    admin = {"X-Project-Id": "p1"}
    assert names(front.get("/v2.1/servers", admin, status="DELETED")) == ["goes"]
    assert names(front.get("/v2.1/servers", admin, deleted="True")) == ["goes"]
    changed = front.get("/v2.1/servers/detail", TENANT | NEWEST, **{"changes-since": "2000-01-01T00:00:00Z"})
    assert {server["name"]: server["status"] for server in changed.json["servers"]} == {"goes": "DELETED", "stays": "BUILD"}
    assert names(front.get("/v2.1/servers", TENANT, **{"changes-since": "2100-01-01T00:00:00Z"})) == []


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("marker=00000000-0000-4000-8000-000000000000", "marker"),
        ("marker=x", "marker"),
        ("limit=-1", "limit"),
        ("limit=x", "limit"),
        ("sort_key=password", "sort_key"),
        ("sort_dir=sideways", "sort_dir"),
        ("name=%5B", "name"),
        ("all_tenants=x", "all_tenants"),
        ("name=(a)%5C1", "name"),
        ("name=%00", "name"),
        ("uuid=%00", "uuid"),
        ("changes-since=then", "changes-since"),
        ("changes-since=2026-01-02&changes-before=2026-01-01", "changes-since"),
        ("marker=x&position=y", "position"),
    ],
)
def test_a_bad_query_is_refused_by_parameter_name(front: Front, query: str, name: str) -> None:
    """400, for both lists."""
    for path in ("/v2.1/servers", "/v2.1/servers/detail"):
        answer = with_status(front.client.simulate_get(f"{path}?{query}"), 400)
        assert answer.json["badRequest"]["message"].startswith(f"{name}: ")


def test_a_marker_of_another_project_is_unknown(front: Front) -> None:
    """Or one could learn that it exists."""
    theirs = front.boot(headers=OTHER_TENANT)
    assert front.get("/v2.1/servers", TENANT, marker=theirs).status_code == 400
    assert front.get("/v2.1/servers", OTHER_TENANT, marker=theirs).status_code == 200


@pytest.mark.parametrize(
    "odd",
    [
        {"state": "weird"},
        {"updated_at": 1e300},
        {"updated_at": -1e12},
        {"created_at": 1e18},
        {"launched_at": 1e300},
        {"terminated_at": -1e300},
        {"fault": "\x1b[31m", "state": "error"},
    ],
    ids=str,
)
def test_an_odd_row_costs_a_project_no_list(front: Front, odd: dict[str, Any]) -> None:
    first, second = front.boot("first"), front.boot("second")
    row = instance_mappings.c.instance_uuid == first
    front.database.write(lambda tx: tx.execute(sa.update(instance_mappings).where(row).values(odd)))
    for path in ("/v2.1/servers", "/v2.1/servers/detail", f"/v2.1/servers/{first}", f"/v2.1/servers/{second}"):
        answer = front.client.simulate_get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
    listed = {server["id"]: server["status"] for server in front.get("/v2.1/servers/detail").json["servers"]}
    assert listed[second] == "BUILD"
    assert listed[first] == ("UNKNOWN" if odd.get("state") == "weird" else "ERROR" if "state" in odd else "BUILD")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"batch_id": 7}', '{"a":' * 3000 + "1" + "}" * 3000], ids=["cut", "list", "type", "deep"]
)
def test_an_undecodable_spec_does_not_break_lists(front: Front, text: str) -> None:
    first, second = front.boot("first"), front.boot("second")
    batch = sa.select(instance_mappings.c.batch_id).where(instance_mappings.c.instance_uuid == first).scalar_subquery()
    statement = sa.update(request_specs).where(request_specs.c.batch_id == batch).values(spec=text)
    front.database.write(lambda tx: tx.execute(statement))
    for path in ("/v2.1/servers", "/v2.1/servers/detail", f"/v2.1/servers/{first}", f"/v2.1/servers/{second}"):
        answer = front.client.simulate_get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"


def test_servers_are_filtered_and_sorted_by_hostname(front: Front) -> None:
    """That of the request, the one made of the name, or the tenant's; a change of the name does not change it."""
    asked = front.boot("a", TENANT | NEWEST, hostname="zulu", networks="none")
    named = front.boot("The Web", TENANT)
    edited = front.boot("c", TENANT)
    for server, change in ((named, {"name": "x"}), (edited, {"hostname": "alpha"})):
        front.client.simulate_put(f"/v2.1/servers/{server}", headers=TENANT | NEWEST, json={"server": change})

    def found(**query: str) -> list[str]:
        return [each["id"] for each in front.get("/v2.1/servers", TENANT, **query).json["servers"]]

    assert found(sort_key="hostname", sort_dir="asc") == [edited, named, asked]
    assert found(hostname="^the-web$") == [named]
    assert found(hostname="^c$") == []
