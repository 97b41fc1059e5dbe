"""Quotas over HTTP: what a boot over the limit is told, and what projects and administrators may see and change."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import falcon.testing
import msgspec
import pytest

from api.opts import ApiSettings
from db.api.deployment import cell_mappings
from objects import errors
from objects.quota import QuotaLimits
from tests.support.api import CELL1_UUID, IMAGE, NEWEST, OTHER_TENANT, TENANT, Front, with_status
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL
from tests.support.keys import ED25519
from tests.support.transactions import run_threads

LIMITS = QuotaLimits(instances=4, cores=-1, ram=5 * 2048)


front = front_fixture(ApiSettings(quota=LIMITS), grounds=USUAL)


def boot(front: Front, headers: dict[str, str], **fields: Any) -> falcon.testing.Result:
    return front.post({"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE} | fields}, headers)


def put(front: Front, project: str, headers: dict[str, str] | None = None, **quota_set: Any) -> falcon.testing.Result:
    return front.client.simulate_put(f"/v2.1/os-quota-sets/{project}", headers=headers, json={"quota_set": quota_set})


def quota_set(front: Front, path: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = with_status(front.get(f"/v2.1/os-quota-sets/{path}", headers), 200)
    found: dict[str, Any] = answer.json["quota_set"]
    return found


def test_a_boot_over_quota_is_forbidden_with_reason(front: Front) -> None:
    """403, not 413: clients tell a tenant's limit from a busy service by that."""
    for _ in range(4):
        assert boot(front, TENANT).status_code == 202
    answer = with_status(boot(front, TENANT), 403)
    text = "Quota exceeded for instances: Requested 1, but already used 4 of 4 instances"
    assert answer.json == {"forbidden": {"code": 403, "message": text}}
    assert boot(front, OTHER_TENANT).status_code == 202, "each project has its own"
    front.bury("No valid host was found.")
    assert boot(front, TENANT).json == answer.json, "what is in ERROR counts until it is deleted"
    front.delete(next(uuid for uuid in front.uuids()), TENANT)
    assert boot(front, TENANT).status_code == 202


def test_a_hundred_boots_are_half_accepted_half_refused(front: Front) -> None:
    put(front, "p1", instances=50, ram=-1)
    together = threading.Barrier(100)
    answers: list[tuple[int, str]] = []

    def ask(_: int) -> None:
        together.wait(60)
        answer = boot(front, TENANT)
        answers.append((answer.status_code, answer.json.get("forbidden", {}).get("message", "")))

    assert run_threads(100, ask) == []
    text = "Quota exceeded for instances: Requested 1, but already used 50 of 50 instances"
    assert Counter(answers) == {(202, ""): 50, (403, text): 50}
    assert len(front.uuids()) == 50
    assert quota_set(front, "p1/detail")["instances"]["in_use"] == 50


def test_a_cell_that_is_down_changes_nothing(front: Front) -> None:
    """What is in it counts, and is free from its delete on, not from its end."""
    boot(front, TENANT, min_count=4)
    front.hand_over()
    mapping = front.registry.get(CELL1_UUID).current_mapping
    front.database.write(cell_mappings.update_mapping, msgspec.structs.replace(mapping, database_url="sqlite:////nowhere/cell1.db"))
    front.registry.refresh_cells()
    with pytest.raises(errors.CellUnavailable):
        front.cell.read(lambda tx: None)
    assert boot(front, TENANT).status_code == 403
    assert front.delete(front.uuids()[0], TENANT).status_code == 204
    assert boot(front, TENANT).status_code == 202
    assert boot(front, TENANT).status_code == 403


def test_several_limits_exceeded_are_named_together(front: Front) -> None:
    assert put(front, "p1", cores=2).status_code == 200
    answer = with_status(boot(front, TENANT, min_count=6), 403)
    assert answer.json["forbidden"]["message"] == (
        "Quota exceeded for cores, instances, ram: Requested 6, 6, 12288, but already used 0, 0, 0 of 2, 4, 10240 "
        "cores, instances, ram"
    )
    assert front.uuids() == []


def test_min_count_allows_fewer_servers(front: Front) -> None:
    """As in the Compute API: down to min_count, and no further."""
    boot(front, TENANT)
    assert boot(front, TENANT, min_count=2, max_count=10).status_code == 202
    names = [
        server["name"] for server in front.get("/v2.1/servers", TENANT, sort_key="display_name", sort_dir="asc").json["servers"]
    ]
    assert names == ["web", "web-1", "web-2", "web-3"]
    refused = boot(front, TENANT, min_count=1, max_count=2).json["forbidden"]["message"]
    assert refused == (
        "Quota exceeded for instances, ram: Requested 1-2, 4096, but already used 4, 8192 of 4, 10240 instances, ram"
    )


def test_a_repeated_request_is_answered_despite_full_quota(front: Front) -> None:
    token = TENANT | {"Idempotency-Key": "once"}
    first = boot(front, token, min_count=4).json["server"]["id"]
    assert boot(front, token, min_count=4).json["server"]["id"] == first
    assert boot(front, TENANT).status_code == 403


@pytest.mark.parametrize("version", ["2.1", "2.35", "2.36", "2.56", "2.57"])
def test_a_project_sees_its_quotas(front: Front, version: str) -> None:
    """Every name that the Compute API has in that version; what nobody counts here has no limit."""
    headers = TENANT | {"OpenStack-API-Version": f"compute {version}"}
    boot(front, TENANT, min_count=2)
    expected = {"key_pairs": 100, "metadata_items": 128, "server_groups": -1, "server_group_members": -1}
    if version != "2.57":
        expected |= {"injected_file_content_bytes": 10240, "injected_file_path_bytes": 255, "injected_files": 5}
    if version in ("2.1", "2.35"):
        expected |= dict.fromkeys(("fixed_ips", "floating_ips", "security_groups", "security_group_rules"), -1)
    limits = expected | {"instances": 4, "cores": -1, "ram": 10240}
    assert quota_set(front, "p1", headers) == limits | {"id": "p1"}
    assert quota_set(front, "p1/defaults", headers) == limits | {"id": "p1"}
    uses = {"instances": 2, "cores": 2, "ram": 4096}
    assert quota_set(front, "p1/detail", headers) == {"id": "p1"} | {
        name: {"in_use": uses.get(name, 0), "limit": limit, "reserved": 0} for name, limit in limits.items()
    }
    assert front.get("/v2.1/p1/os-quota-sets/p1", headers).status_code == 200


@pytest.mark.parametrize("version", ["2.1", "2.36", "2.39", "2.57"])
def test_a_project_sees_its_limits(front: Front, version: str) -> None:
    headers = TENANT | {"OpenStack-API-Version": f"compute {version}"}
    boot(front, TENANT, min_count=3)
    answer = front.get("/v2.1/limits", headers)
    limits = answer.json["limits"]
    assert limits["rate"] == []
    absolute = limits["absolute"]
    counted = {name: absolute[name] for name in absolute if name.startswith("maxTotal") or name.endswith("Used")}
    network = {"maxTotalFloatingIps": -1, "totalFloatingIpsUsed": 0, "totalSecurityGroupsUsed": 0} if version == "2.1" else {}
    assert counted == network | {
        "maxTotalInstances": 4,
        "maxTotalCores": -1,
        "maxTotalRAMSize": 10240,
        "maxTotalKeypairs": 100,
        "totalInstancesUsed": 3,
        "totalCoresUsed": 3,
        "totalRAMUsed": 6144,
        "totalServerGroupsUsed": 0,
    }
    assert absolute["maxServerMeta"] == 128
    assert ("maxSecurityGroups" in absolute, "maxImageMeta" in absolute) == (version == "2.1", version in ("2.1", "2.36"))
    assert ("maxPersonality" in absolute) == (version != "2.57")
    assert front.get("/v2.1/limits", tenant_id="p1").json["limits"]["absolute"]["totalInstancesUsed"] == 3
    assert front.get("/v2.1/limits").json["limits"]["absolute"]["totalInstancesUsed"] == 0
    assert front.get("/v2.1/limits", OTHER_TENANT, tenant_id="p1").status_code == 403


def test_an_administrator_changes_them_for_the_next_boot(front: Front) -> None:
    changed = with_status(put(front, "p1", NEWEST, instances="1", ram=-1), 200)
    assert "id" not in changed.json["quota_set"]
    assert {name: changed.json["quota_set"][name] for name in ("instances", "cores", "ram")} == {
        "instances": 1,
        "cores": -1,
        "ram": -1,
    }
    assert boot(front, TENANT).status_code == 202
    assert boot(front, TENANT).status_code == 403
    assert boot(front, OTHER_TENANT).status_code == 202
    removed = front.client.simulate_delete("/v2.1/os-quota-sets/p1")
    assert (removed.status_code, removed.text) == (202, "")
    assert quota_set(front, "p1")["instances"] == 4
    assert boot(front, TENANT).status_code == 202


def test_a_limit_below_what_is_used_needs_force(front: Front) -> None:
    boot(front, TENANT, min_count=3)
    refused = with_status(put(front, "p1", instances=2), 400)
    assert refused.json["badRequest"]["message"] == (
        "Quota limit 2 for instances must be greater than or equal to already used and reserved 3."
    )
    assert put(front, "p1", instances=2, force="True").status_code == 200
    assert quota_set(front, "p1/detail", TENANT)["instances"] == {"in_use": 3, "limit": 2, "reserved": 0}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"instances": -2}, "quota_set.instances: -2 does not fit"),
        ({"instances": "many"}, "quota_set.instances: 'many' does not fit"),
        ({"cores": True}, "quota_set.cores: True is not of type integer or string"),
        ({"ram": "9999999999"}, "quota_set.ram: 9999999999 is more than the maximum"),
        ({"key_pairs": "99999999999"}, "quota_set.key_pairs: '99999999999' does not fit"),
        ({"networks": 5}, "quota_set.networks: is not a field"),
    ],
)
def test_an_impossible_limit_is_refused_by_name(front: Front, body: dict[str, Any], text: str) -> None:
    answer = with_status(put(front, "p1", **body), 400)
    assert answer.json["badRequest"]["message"].startswith(text)
    assert quota_set(front, "p1")["instances"] == 4


def test_what_is_not_a_tenants_business_is_refused(front: Front) -> None:
    assert front.get("/v2.1/os-quota-sets/p1", OTHER_TENANT).status_code == 403
    assert put(front, "p1", TENANT, instances=99).status_code == 403
    assert front.client.simulate_delete("/v2.1/os-quota-sets/p1", headers=TENANT).status_code == 403


def test_a_project_that_cannot_be_is_refused(front: Front) -> None:
    assert front.get("/v2.1/os-quota-sets/p%201").status_code == 400


FURTHER: dict[str, Any] = {"key_pairs": 1, "metadata_items": 1, "fixed_ips": 7, "injected_files": 3}


def test_further_limits_are_stored_shown_and_in_force(front: Front) -> None:
    """Those of things that do not exist here are shown only."""
    assert put(front, "p1", **FURTHER).status_code == 200
    shown = quota_set(front, "p1", TENANT)
    assert {name: shown[name] for name in FURTHER} == FURTHER
    absolute = front.get("/v2.1/limits", TENANT).json["limits"]["absolute"]
    assert (absolute["maxServerMeta"], absolute["maxTotalKeypairs"], absolute["maxPersonality"]) == (1, 1, 3)
    wait_for_limits(front)
    assert boot(front, TENANT, metadata={"a": "1"}).status_code == 202
    assert boot(front, TENANT, metadata={"a": "1", "b": "2"}).status_code == 403
    path = f"/v2.1/servers/{front.uuids()[0]}/metadata"
    more = front.client.simulate_post(path, headers=TENANT, json={"metadata": {"b": "2"}})
    assert (more.status_code, more.json["forbidden"]["message"]) == (403, "Maximum number of metadata items exceeds 1")
    pairs = [
        front.client.simulate_post("/v2.1/os-keypairs", headers=TENANT, json={"keypair": {"name": name, "public_key": ED25519}})
        for name in ("one", "two")
    ]
    assert [pair.status_code for pair in pairs] == [200, 403]
    assert boot(front, OTHER_TENANT, metadata={"a": "1", "b": "2"}).status_code == 202
    assert front.client.simulate_delete("/v2.1/os-quota-sets/p1").status_code == 202
    assert quota_set(front, "p1")["key_pairs"] == 100


@pytest.mark.parametrize(
    ("version", "name", "status"),
    [
        ("2.35", "fixed_ips", 200),
        ("2.36", "fixed_ips", 400),
        ("2.56", "injected_files", 200),
        ("2.57", "injected_files", 400),
        ("2.57", "server_groups", 200),
    ],
)
def test_each_version_has_its_names(front: Front, version: str, name: str, status: int) -> None:
    assert put(front, "p1", {"OpenStack-API-Version": f"compute {version}"}, **{name: 5}).status_code == status


def test_the_default_class_replaces_the_configured_limits(front: Front) -> None:
    """For projects without limits of their own."""
    path = "/v2.1/os-quota-class-sets/default"
    assert front.get(path).json["quota_class_set"]["instances"] == 4
    put(front, "p2", instances=4)
    changed = with_status(front.client.simulate_put(path, json={"quota_class_set": {"instances": 1, "metadata_items": "2"}}), 200)
    assert changed.json["quota_class_set"].items() >= {"instances": 1, "metadata_items": 2, "ram": 10240}.items()
    assert (quota_set(front, "p1")["instances"], quota_set(front, "p2")["instances"]) == (1, 4)
    assert quota_set(front, "p1/defaults", TENANT)["instances"] == 1
    assert front.get("/v2.1/limits", TENANT).json["limits"]["absolute"]["maxTotalInstances"] == 1
    wait_for_limits(front)
    assert boot(front, TENANT, min_count=2).status_code == 403
    assert boot(front, OTHER_TENANT, min_count=2).status_code == 202
    assert boot(front, TENANT, metadata={"a": "1", "b": "2", "c": "3"}).status_code == 403


@pytest.mark.parametrize(
    ("version", "there", "gone"), [("2.1", "fixed_ips", "server_groups"), ("2.50", "server_groups", "fixed_ips")]
)
def test_the_class_has_the_names_of_each_version(front: Front, version: str, there: str, gone: str) -> None:
    headers = {"OpenStack-API-Version": f"compute {version}"}
    shown = front.get("/v2.1/os-quota-class-sets/default", headers).json["quota_class_set"]
    assert shown["id"] == "default"
    assert there in shown
    assert gone not in shown
    refused = front.client.simulate_put("/v2.1/os-quota-class-sets/default", headers=TENANT, json={"quota_class_set": {}})
    assert refused.status_code == 403
    assert front.client.simulate_put("/v2.1/os-quota-class-sets/gold", json={"quota_class_set": {"cores": 1}}).status_code == 400


def wait_for_limits(front: Front) -> None:
    """A shown limit is in force in this process: the read renewed its cache."""
    quota_set(front, "p1")
