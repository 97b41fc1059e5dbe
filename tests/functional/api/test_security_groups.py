"""The security group ``default`` of each project, as servers, ports and a network service have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.opts import ApiSettings
from tests.support.api import NEWEST, OTHER_TENANT, TENANT, Front
from tests.support.pools import make_network


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    made = Front(tmp_path, ApiSettings())
    make_network(made.database, "10.0.0.0/28", "fd00::/124", name="blue")
    yield made
    made.close()


def group(front: Front, headers: dict[str, str] = TENANT, query: str = "") -> dict[str, Any]:
    [found] = front.get(f"/network/v2.0/security-groups{query}", headers).json["security_groups"]
    assert isinstance(found, dict)
    return found


def act(front: Front, server: str, action: str, name: str) -> tuple[int, str]:
    answer = front.client.simulate_post(f"/v2.1/servers/{server}/action", headers=TENANT, json={action: {"name": name}})
    return answer.status_code, answer.text


def test_each_project_has_one_group_that_allows_everything(front: Front) -> None:
    own = group(front)
    assert (own["name"], own["project_id"]) == ("default", TENANT["X-Project-Id"])
    assert group(front, OTHER_TENANT)["id"] != own["id"]
    assert group(front, query="?name=default&fields=id") == {"id": own["id"]}
    assert front.get("/network/v2.0/security-groups?name=web", TENANT).json == {"security_groups": []}
    assert front.get(f"/network/v2.0/security-groups/{own['id']}", TENANT).json["security_group"] == own
    assert front.get(f"/network/v2.0/security-groups/{own['id']}", OTHER_TENANT).status_code == 404
    rules = front.get(f"/network/v2.0/security-group-rules?security_group_id={own['id']}", TENANT).json["security_group_rules"]
    every = {(direction, version) for direction in ("ingress", "egress") for version in ("IPv4", "IPv6")}
    assert {(rule["direction"], rule["ethertype"]) for rule in rules} == every
    assert {rule[name] for rule in rules for name in ("protocol", "remote_ip_prefix", "remote_group_id")} == {None}
    assert sorted(each["id"] for each in own["security_group_rules"]) == [rule["id"] for rule in rules]
    shown = front.get(f"/network/v2.0/security-group-rules/{rules[0]['id']}", TENANT).json["security_group_rule"]
    assert shown == rules[0]


def test_administrators_name_the_project_and_members_cannot(front: Front) -> None:
    query = f"?project_id={TENANT['X-Project-Id']}"
    assert group(front, {}, query)["id"] == group(front)["id"]
    assert front.get(f"/network/v2.0/security-groups{query}", OTHER_TENANT).json == {"security_groups": []}


def test_the_group_of_a_project_is_not_deleted(front: Front) -> None:
    """An administrator is told as by Neutron, which makes the group anew; clean-ups of test suites rely on it."""
    front.boot(headers=TENANT)
    own = group(front)
    path = f"/network/v2.0/security-groups/{own['id']}"

    def delete(headers: dict[str, str]) -> int:
        return front.client.simulate_delete(path, headers=headers).status_code

    assert (delete(TENANT), delete(OTHER_TENANT), delete(TENANT | {"X-Roles": "reader"}), delete({})) == (409, 404, 403, 204)
    assert group(front) == own
    path = "/network/v2.0/security-groups/70a599e0-31e7-49b7-b260-868f441e8000"
    assert (delete(TENANT), delete({})) == (404, 404)


def test_a_server_with_an_interface_has_the_group(front: Front) -> None:
    server = front.boot(headers=TENANT)
    own = group(front)
    [port] = front.get("/network/v2.0/ports", TENANT).json["ports"]
    assert port["security_groups"] == [own["id"]]
    removable = front.get(f"/v2.1/servers/{server}/os-security-groups", TENANT)
    assert removable.json == {"security_groups": []}, "Ansible asks to remove those that it finds here"
    assert front.get(f"/v2.1/servers/{server}", TENANT).json["server"]["security_groups"] == [{"name": "default"}]
    [listed] = front.get("/v2.1/servers/detail", TENANT).json["servers"]
    assert listed["security_groups"] == [{"name": "default"}]
    assert front.get(f"/v2.1/servers/{server}/os-security-groups", OTHER_TENANT).status_code == 404


def test_the_group_is_added_again_and_not_removed(front: Front) -> None:
    server, own = front.boot(headers=TENANT), group(front)
    for name in ("default", own["id"]):
        assert act(front, server, "addSecurityGroup", name) == (202, "")
        status, text = act(front, server, "removeSecurityGroup", name)
        assert (status, "nothing here filters traffic" in text) == (409, True)
    assert act(front, server, "addSecurityGroup", "web")[0] == 404
    assert act(front, server, "removeSecurityGroup", "web")[0] == 404
    assert act(front, server, "addSecurityGroup", group(front, OTHER_TENANT)["id"])[0] == 404


def test_a_server_without_interfaces_has_no_group(front: Front) -> None:
    server = front.boot(headers=TENANT | NEWEST, networks="none")
    assert front.get(f"/v2.1/servers/{server}/os-security-groups", TENANT).json == {"security_groups": []}
    assert "security_groups" not in front.get(f"/v2.1/servers/{server}", TENANT).json["server"]
    assert act(front, server, "addSecurityGroup", "default")[0] == 404


def test_a_boot_names_the_group_by_its_id(front: Front) -> None:
    own = group(front)
    assert front.boot(headers=TENANT, security_groups=[{"name": own["id"]}])
    assert front.boot(headers=TENANT, security_groups=[{"name": "default"}])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", "os-security-groups"), ("PUT", "os-security-groups/6"), ("DELETE", "os-security-groups/6")),
        *(("POST", "os-security-group-rules"), ("DELETE", "os-security-group-rules/6")),
    ],
)
def test_the_compute_api_says_why_groups_never_change(front: Front, method: str, path: str) -> None:
    answer = front.client.simulate_request(method, f"/v2.1/{path}", headers=TENANT, json={})
    assert (answer.status_code, "nothing enforces their rules here" in answer.text) == (501, True)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "security-groups"), ("POST", "security-group-rules"), ("PUT", "security-groups/6")]
)
def test_groups_are_not_changed(front: Front, method: str, path: str) -> None:
    answer = front.client.simulate_request(method, f"/network/v2.0/{path}", headers=TENANT, json={})
    assert (answer.status_code, "nothing enforces their rules here" in answer.text) == (501, True)
