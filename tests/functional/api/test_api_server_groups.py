"""Server groups over HTTP, their members, and the limits of their numbers."""

from __future__ import annotations

from typing import Any

import falcon.testing
import pytest
import sqlalchemy as sa

from api.http.microversions import MAXIMUM, Version, format_version
from api.opts import ApiSettings
from db.api.rows.tables import server_groups
from db.cell import instances
from tests.support.api import IMAGE, NEWEST, OTHER_TENANT, TENANT, Front, refusal, with_status
from tests.support.fronts import front_on_servers

PATH = "/v2.1/os-server-groups"
READER = NEWEST | TENANT | {"X-Roles": "reader"}
ADMIN = NEWEST | TENANT | {"X-Project-Id": "admins", "X-User-Id": "boss", "X-Roles": "admin"}
BASIC = {"id", "name", "members"}
UNKNOWN = "3f0a2b5e-1111-4222-8333-444455556666"


front = front_on_servers(ApiSettings(server_groups=3, server_group_members=3))


def at(version: Version) -> dict[str, str]:
    return {"OpenStack-API-Version": f"compute {format_version(version)}"}


def create(front: Front, headers: dict[str, str] = NEWEST | TENANT, **fields: Any) -> falcon.testing.Result:
    body = {"server_group": {"name": "web", "policy": "anti-affinity"} | fields}
    return front.client.simulate_post(PATH, headers=headers, json=body)


def made(front: Front, headers: dict[str, str] = NEWEST | TENANT, **fields: Any) -> str:
    answer = with_status(create(front, headers, **fields), 200)
    return str(answer.json["server_group"]["id"])


def ids(front: Front, headers: dict[str, str] = NEWEST | TENANT, **params: str) -> list[str]:
    answer = with_status(front.get(PATH, headers, **params), 200)
    return [each["id"] for each in answer.json["server_groups"]]


def members(front: Front, group: str, headers: dict[str, str] = NEWEST | TENANT) -> list[str]:
    shown = front.get(f"{PATH}/{group}", headers).json["server_group"]["members"]
    assert front.get(PATH, ADMIN, all_projects="1").json["server_groups"][0]["members"] == shown
    return list(shown)


def boot(front: Front, group: str, headers: dict[str, str] = TENANT, **fields: Any) -> falcon.testing.Result:
    server = {"name": "web", "flavorRef": "1", "imageRef": IMAGE} | fields
    return front.post({"server": server, "os:scheduler_hints": {"group": group}}, headers)


def test_a_group_is_created_listed_shown_and_deleted(front: Front) -> None:
    answer = with_status(create(front, rules={"max_server_per_host": "2"}), 200)
    group = answer.json["server_group"]
    rest = {"members": [], "rules": {"max_server_per_host": 2}, "project_id": "p1", "user_id": "u1"}
    assert group == {"id": group["id"], "name": "web", "policy": "anti-affinity"} | rest
    assert front.get(PATH, READER).json == {"server_groups": [group]}
    assert front.get(f"{PATH}/{group['id']}", READER).json == {"server_group": group}
    path = f"{PATH}/{group['id']}"
    assert front.client.simulate_delete(path, headers=READER).status_code == 403
    assert front.client.simulate_delete(path, headers=NEWEST | TENANT).status_code == 204
    assert refusal(front.get(path, READER), 404) == f"Instance group {group['id']} could not be found."
    assert refusal(front.client.simulate_delete(path, headers=NEWEST | TENANT), 404)
    assert ids(front) == []


def test_a_group_may_limit_its_members_per_rack(front: Front) -> None:
    group = create(front, rules={"max_server_per_rack": "2"}).json["server_group"]
    assert group["rules"] == {"max_server_per_rack": 2}
    assert front.get(f"{PATH}/{group['id']}", READER).json["server_group"]["rules"] == {"max_server_per_rack": 2}
    assert boot(front, group["id"]).status_code == 202


def test_fault_domains_are_of_groups(front: Front) -> None:
    group, together = made(front, policy="soft-anti-affinity"), made(front, policy="affinity")

    def boot_in(domain: Any, of: str | None = group) -> falcon.testing.Result:
        given = {"fault_domain": domain} | ({} if of is None else {"group": of})
        server = {"name": "web", "flavorRef": "1", "imageRef": IMAGE}
        return front.post({"server": server, "os:scheduler_hints": given}, TENANT)

    assert boot_in("1").status_code == 202
    assert "os:scheduler_hints.fault_domain: is of a server group" in refusal(boot_in("1", None), 400)
    assert "a group with the policy affinity runs on one host" in refusal(boot_in("1", together), 400)
    for bad in ("x" * 256, "a\n", ["1", "2"]):
        assert "fault_domain" in refusal(boot_in(bad), 400)


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        ((2, 1), BASIC | {"policies", "metadata"}),
        ((2, 12), BASIC | {"policies", "metadata"}),
        ((2, 13), BASIC | {"policies", "metadata", "project_id", "user_id"}),
        ((2, 63), BASIC | {"policies", "metadata", "project_id", "user_id"}),
        ((2, 64), BASIC | {"policy", "rules", "project_id", "user_id"}),
        (MAXIMUM, BASIC | {"policy", "rules", "project_id", "user_id"}),
    ],
)
def test_each_version_has_its_shape(front: Front, version: Version, fields: set[str]) -> None:
    headers = TENANT | at(version)
    policy = {"policy": "affinity"} if version >= (2, 64) else {"policies": ["affinity"]}
    answer = with_status(front.client.simulate_post(PATH, headers=headers, json={"server_group": {"name": "web"} | policy}), 200)
    group = answer.json["server_group"]
    assert set(group) == fields
    assert {name: group[name] for name in policy} == policy
    assert group.get("metadata", {}) == group.get("rules", {}) == {}
    assert front.get(PATH, headers).json["server_groups"] == [group]
    assert front.get(f"{PATH}/{group['id']}", headers).json["server_group"] == group


def test_soft_policies_came_with_2_15(front: Front) -> None:
    body = {"server_group": {"name": "web", "policies": ["soft-affinity"]}}
    old = front.client.simulate_post(PATH, headers=TENANT | at((2, 14)), json=body)
    assert refusal(old, 400).startswith("server_group.policies[0]: 'soft-affinity' is not one of")
    new = front.client.simulate_post(PATH, headers=TENANT | at((2, 15)), json=body)
    assert new.json["server_group"]["policies"] == ["soft-affinity"]
    assert front.get(PATH, TENANT).json["server_groups"][0]["policies"] == ["soft-affinity"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": " a"},
        {"name": "x" * 256},
        {"name": "\x00"},
        {"name": 7},
        {"policy": "legacy"},
        {"policy": ["affinity"]},
        {"policies": ["affinity"]},
        {"rules": {"max_server_per_host": 0}},
        {"rules": {"max_server_per_host": "0"}},
        {"rules": {"max_server_per_host": 2**31}},
        {"rules": {"max_server_per_host": True}},
        {"rules": {"max_server_per_rack": 0}},
        {"policy": "soft-anti-affinity", "rules": {"max_server_per_rack": 2}},
        {"rules": {"x": 1}},
        {"rules": []},
        {"policy": "affinity", "rules": {"max_server_per_host": 2}},
        {"members": []},
    ],
)
def test_bad_fields_of_a_group_are_refused(front: Front, fields: dict[str, Any]) -> None:
    assert "\n" not in refusal(create(front, **fields), 400)
    for policies in ([], ["affinity", "anti-affinity"], ["affinity", "affinity"], "affinity", [7], [["affinity"]]):
        body = {"server_group": {"name": "web", "policies": policies}}
        assert refusal(front.client.simulate_post(PATH, headers=TENANT, json=body), 400)
    assert front.database.read(lambda tx: tx.execute(sa.select(server_groups)).all()) == []


def test_names_may_be_the_same(front: Front) -> None:
    first, second, other = made(front), made(front), made(front, NEWEST | OTHER_TENANT)
    assert ids(front) == [first, second]
    assert ids(front, NEWEST | OTHER_TENANT) == [other]
    booted = with_status(boot(front, second), 202)
    assert front.get(f"{PATH}/{second}", READER).json["server_group"]["members"] == [booted.json["server"]["id"]]
    assert "server group 'web' could not be found; give its UUID" in refusal(boot(front, "web"), 400)
    assert "could not be found" in refusal(boot(front, other), 400)


def test_another_projects_groups_are_for_administrators(front: Front) -> None:
    mine, other = made(front), made(front, NEWEST | OTHER_TENANT)
    assert refusal(front.get(f"{PATH}/{other}", READER), 404)
    assert refusal(front.client.simulate_delete(f"{PATH}/{other}", headers=NEWEST | TENANT), 404)
    assert front.get(f"{PATH}/{other}", ADMIN).json["server_group"]["project_id"] == "p2"
    assert ids(front, ADMIN) == []
    assert ids(front, ADMIN, all_projects="True") == [mine, other]
    assert ids(front, READER, all_projects="True") == [mine], "like in Nova"
    assert front.client.simulate_delete(f"{PATH}/{other}", headers=ADMIN).status_code == 204
    assert ids(front, ADMIN, all_projects="") == [mine]


def age(front: Front, group: str, created_at: float) -> None:
    row = sa.update(server_groups).where(server_groups.c.uuid == group).values(created_at=created_at)
    front.database.write(lambda tx: tx.execute(row))


def test_groups_come_in_pages(front: Front) -> None:
    every = [made(front, name=name) for name in ("b", "c", "a")]
    for moment, uuid in enumerate(every):  # a clock of milliseconds may read the same twice
        age(front, uuid, float(moment))
    assert ids(front) == ids(front, limit="0") == ids(front, limit="9", offset="0") == every
    assert ids(front, limit="2") == every[:2]
    assert ids(front, limit="2", offset="2") == every[2:]
    assert ids(front, offset="9" * 30) == []
    for name in ("limit", "offset"):
        for value in ("-1", "x", "1.5"):
            assert refusal(front.get(PATH, READER, **{name: value}), 400).startswith(f"{name}: ")
    assert ids(front, TENANT, surprise="1") == every


def test_members_are_servers_that_are_not_deleted(front: Front) -> None:
    group = made(front, policy="soft-affinity")
    assert members(front, group) == []
    server = boot(front, group).json["server"]["id"]
    assert members(front, group) == [server], "while it is queued"
    front.bring_up(server)
    buried = boot(front, group).json["server"]["id"]
    front.bury("no host")
    assert members(front, group) == [server, buried]
    assert front.delete(server, TENANT).status_code == 204
    front.cell.write(instances.delete, [server], 1.0, None)
    front.destroyed(server)
    front.follow_feed()
    assert members(front, group) == [buried]
    front.boot("alone", TENANT)
    assert members(front, group) == [buried]


def test_a_project_has_a_maximum_of_groups(front: Front) -> None:
    every = [made(front) for _ in range(3)]
    assert refusal(create(front), 403) == "Quota exceeded, too many server groups."
    made(front, NEWEST | OTHER_TENANT)
    detail = front.get("/v2.1/os-quota-sets/p1/detail", NEWEST | TENANT).json["quota_set"]
    assert detail["server_groups"] == {"in_use": 3, "limit": 3, "reserved": 0}
    limits = front.get("/v2.1/limits", NEWEST | TENANT).json["limits"]["absolute"]
    assert (limits["maxServerGroups"], limits["totalServerGroupsUsed"], limits["maxServerGroupMembers"]) == (3, 3, 3)
    assert front.client.simulate_delete(f"{PATH}/{every[0]}", headers=NEWEST | TENANT).status_code == 204
    assert create(front).status_code == 200


def test_a_group_has_a_maximum_of_members(front: Front) -> None:
    group, other = made(front), made(front)
    first = boot(front, group).json["server"]["id"]
    assert refusal(boot(front, group, min_count=3), 403) == "Quota exceeded, too many servers in group"
    assert members(front, group) == [first]
    assert boot(front, group, min_count=2).status_code == 202
    assert refusal(boot(front, group), 403) == "Quota exceeded, too many servers in group"
    assert boot(front, other, min_count=3).status_code == 202
    assert front.delete(first, TENANT).status_code == 204
    assert boot(front, group).status_code == 202
    assert len(members(front, group)) == 3
    front.boot("alone", TENANT, min_count=4)


def test_a_project_can_have_limits_of_its_own(front: Front) -> None:
    body = {"quota_set": {"server_groups": 1, "server_group_members": 1}}
    changed = front.client.simulate_put("/v2.1/os-quota-sets/p1", headers=NEWEST, json=body)
    assert changed.json["quota_set"].items() >= body["quota_set"].items()
    front.get("/v2.1/os-quota-sets/p1", NEWEST)  # a shown limit is in force
    group = made(front)
    assert refusal(create(front), 403) == "Quota exceeded, too many server groups."
    assert boot(front, group).status_code == 202
    assert refusal(boot(front, group), 403) == "Quota exceeded, too many servers in group"
    made(front, NEWEST | OTHER_TENANT)
    made(front, NEWEST | OTHER_TENANT)


def test_an_unknown_id_is_not_found(front: Front) -> None:
    for name in (UNKNOWN, "web", "%00", "%F0%9F%98%80", "x" * 300, "%C2%A0"):
        for method in ("GET", "DELETE"):
            assert front.client.simulate_request(method, f"{PATH}/{name}", headers=NEWEST | TENANT).status_code in (400, 404)
