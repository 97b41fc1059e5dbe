"""Unique server names over HTTP: boots, changes and rebuilds are refused a name that is taken, and a dry run says so."""

from __future__ import annotations

from typing import Any

import falcon.testing

from api.opts import ApiSettings
from objects.server_name import NameScope
from tests.support.api import IMAGE, NEWEST, OTHER_TENANT, TENANT, Front
from tests.support.deciding import scheduler_of
from tests.support.fronts import front_fixture
from tests.support.ground import GROUNDS
from tests.support.transactions import run_threads

NEW = TENANT | NEWEST
TAKEN = "Instance {} already exists."


front = front_fixture(ApiSettings(unique_server_names=NameScope.PROJECT, cell_timeout=1.0), grounds=GROUNDS)


def boot(front: Front, name: str, headers: dict[str, str] = NEW, **fields: Any) -> falcon.testing.Result:
    server = {"name": name, "flavorRef": "1", "imageRef": IMAGE, "networks": "none"} | fields
    return front.post({"server": server}, headers)


def refusal(answer: falcon.testing.Result) -> str:
    assert answer.status_code == 409, answer.text
    return str(answer.json["conflictingRequest"]["message"])


def test_a_name_in_use_is_refused(front: Front) -> None:
    first = boot(front, "web").json["server"]["id"]
    assert refusal(boot(front, "Web")) == TAKEN.format("Web")
    assert boot(front, "web", OTHER_TENANT | NEWEST).status_code == 202
    assert boot(front, "db", min_count=2).status_code == 202
    assert refusal(boot(front, "DB-2")) == TAKEN.format("DB-2")
    assert refusal(boot(front, "db", min_count=3, max_count=3)) == TAKEN.format("db-1")
    assert front.delete(first, NEW).status_code == 204
    assert boot(front, "Web").status_code == 202


def test_one_of_several_concurrent_same_name_boots_succeeds(front: Front) -> None:
    """Also of those that share a transaction, while others beside them are accepted."""
    for attempt in range(4):
        answers: list[falcon.testing.Result] = []
        others: list[int] = []

        def ask(number: int, attempt: int = attempt, answers: list[Any] = answers, others: list[int] = others) -> None:
            if number % 3:
                answers.append(boot(front, f"web-{attempt}"))
            else:
                others.append(boot(front, f"other-{attempt}-{number}").status_code)

        assert run_threads(9, ask) == []
        assert sorted(answer.status_code for answer in answers) == [202] + [409] * 5
        assert {refusal(answer) for answer in answers if answer.status_code != 202} == {TAKEN.format(f"web-{attempt}")}
        assert others == [202] * 3


def test_a_server_cannot_take_a_used_name(front: Front) -> None:
    server, _ = (boot(front, name).json["server"]["id"] for name in ("web", "db"))
    path = f"/v2.1/servers/{server}"

    def put(name: str) -> falcon.testing.Result:
        return front.client.simulate_put(path, headers=NEW, json={"server": {"name": name}})

    assert refusal(put("DB")) == TAKEN.format("DB")
    assert front.get(path, NEW).json["server"]["name"] == "web"
    assert put("WEB").status_code == 200
    assert put("front").status_code == 200
    assert boot(front, "web").status_code == 202


def test_rebuilds_with_a_used_name_do_not_begin(front: Front) -> None:
    boot(front, "db")
    server = boot(front, "web").json["server"]["id"]
    front.hand_over()
    front.accept(server)
    front.activate_accepted(server)
    front.follow_feed()

    def rebuild(name: str) -> falcon.testing.Result:
        path = f"/v2.1/servers/{server}/action"
        return front.client.simulate_post(path, headers=NEW, json={"rebuild": {"imageRef": IMAGE, "name": name}})

    assert refusal(rebuild("Db")) == TAKEN.format("Db")
    assert front.get(f"/v2.1/servers/{server}", NEW).json["server"]["status"] == "ACTIVE"
    assert rebuild("front").status_code == 202
    assert boot(front, "web").status_code == 202


def test_a_dry_run_reports_a_used_name(front: Front) -> None:
    boot(front, "web", NEWEST)
    with scheduler_of(front):
        asked = {"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "networks": "none"}}
        answer = front.client.simulate_post("/v2.1/superconductor/dry-run", headers=NEWEST, json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json["dry_run"]["outcome"] == "refused"
    assert TAKEN.format("web") in answer.json["dry_run"]["refusals"]
