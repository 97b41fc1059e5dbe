"""Quotas of users over HTTP: ``user_id`` in ``/os-quota-sets/{project}``, and what the limits do."""

from __future__ import annotations

from typing import Any

import falcon.testing
import pytest

from api.opts import ApiSettings
from objects.quota import QuotaLimits
from tests.support.api import IMAGE, NEWEST, TENANT, Front, with_status
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL
from tests.support.keys import ED25519

LIMITS = QuotaLimits(instances=4, cores=-1, ram=5 * 2048)
USER = TENANT["X-User-Id"]
COLLEAGUE = TENANT | {"X-User-Id": "colleague"}


front = front_fixture(ApiSettings(quota=LIMITS), grounds=USUAL)


def boot(front: Front, headers: dict[str, str], **fields: Any) -> falcon.testing.Result:
    return front.post({"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE} | fields}, headers)


def put(front: Front, user: str | None = USER, headers: dict[str, str] | None = None, **quota_set: Any) -> falcon.testing.Result:
    params = {} if user is None else {"user_id": user}
    return front.client.simulate_put("/v2.1/os-quota-sets/p1", headers=headers, params=params, json={"quota_set": quota_set})


def shown(front: Front, user: str | None = USER, path: str = "p1", headers: dict[str, str] | None = None) -> dict[str, Any]:
    params = {} if user is None else {"user_id": user}
    answer = with_status(front.get(f"/v2.1/os-quota-sets/{path}", headers, **params), 200)
    found: dict[str, Any] = answer.json["quota_set"]
    return found


def delete(front: Front, user: str | None = USER) -> int:
    params = {} if user is None else {"user_id": user}
    return int(front.client.simulate_delete("/v2.1/os-quota-sets/p1", params=params).status_code)


def message(answer: falcon.testing.Result, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(next(iter(answer.json.values()))["message"])


def test_a_user_has_project_limits_by_default(front: Front) -> None:
    assert shown(front) == shown(front, None)
    changed = with_status(put(front, instances=2, key_pairs="7"), 200)
    assert "id" not in changed.json["quota_set"]
    own = shown(front, None) | {"instances": 2, "key_pairs": 7}
    assert changed.json["quota_set"] | {"id": "p1"} == own == shown(front) == shown(front, headers=TENANT)
    assert shown(front, "colleague") == shown(front, None)
    assert put(front, None, instances=3).status_code == 200
    assert (shown(front)["instances"], shown(front, "colleague")["instances"]) == (2, 3)
    assert delete(front) == 202
    assert shown(front) == shown(front, None)
    assert shown(front)["instances"] == 3
    assert delete(front) == 202, "harmless to repeat"


def test_user_limits_apply_beside_project_limits(front: Front) -> None:
    put(front, instances=2)
    assert boot(front, TENANT, min_count=1, max_count=3).status_code == 202
    assert len(front.uuids()) == 2
    refused = "Quota exceeded for instances: Requested 1, but already used 2 of 2 instances of this user"
    assert message(boot(front, TENANT), 403) == refused
    assert boot(front, COLLEAGUE, min_count=2).status_code == 202
    assert message(boot(front, COLLEAGUE), 403) == "Quota exceeded for instances: Requested 1, but already used 4 of 4 instances"
    front.delete(front.uuids()[0], TENANT)
    delete(front)
    assert boot(front, TENANT).status_code == 202


def test_the_detail_shows_what_the_user_has(front: Front) -> None:
    boot(front, TENANT)
    boot(front, COLLEAGUE, min_count=2)
    uses = {
        name: {key: value["in_use"] for key, value in shown(front, name, "p1/detail").items() if key in ("instances", "ram")}
        for name in (USER, "colleague", "nobody")
    }
    assert uses == {
        USER: {"instances": 1, "ram": 2048},
        "colleague": {"instances": 2, "ram": 4096},
        "nobody": {"instances": 0, "ram": 0},
    }
    put(front, instances=3)
    boot(front, TENANT)
    assert shown(front, path="p1/detail")["instances"] == {"in_use": 2, "limit": 3, "reserved": 0}
    assert shown(front, None, path="p1/detail")["instances"] == {"in_use": 4, "limit": 4, "reserved": 0}


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"instances": 1}, "Quota limit 1 for instances must be greater than or equal to already used and reserved 2."),
        ({"instances": 5}, "Quota limit 5 for instances must be less than or equal to 4."),
        ({"instances": -1}, "Quota limit -1 for instances must be less than or equal to 4."),
        ({"key_pairs": 101}, "Quota limit 101 for key_pairs must be less than or equal to 100."),
        ({"metadata_items": -1}, "Quota limit -1 for metadata_items must be less than or equal to 128."),
        ({"instances": 3, "key_pairs": 101}, "Quota limit 101 for key_pairs must be less than or equal to 100."),
    ],
)
def test_limits_beyond_project_or_below_usage_need_force(front: Front, limits: dict[str, Any], text: str) -> None:
    boot(front, TENANT, min_count=2)
    assert message(put(front, **limits), 400) == text
    assert shown(front) == shown(front, None), "nothing of a refused request is kept"
    assert put(front, force=True, **limits).status_code == 200
    assert shown(front).items() >= limits.items()


def test_a_user_gets_the_remainder_of_the_project(front: Front) -> None:
    put(front, instances=3, server_groups=2)
    assert "less than or equal to 1." in message(put(front, "colleague", instances=2), 400)
    assert put(front, "colleague", instances=1).status_code == 200
    assert "greater than or equal to already used and reserved 4." in message(put(front, None, instances=3), 400)
    assert put(front, None, key_pairs=10).status_code == 200
    assert put(front, key_pairs=6).status_code == 200
    assert "less than or equal to 4." in message(put(front, "colleague", key_pairs=5), 400)
    assert "greater than or equal to already used and reserved 6." in message(put(front, None, key_pairs=5), 400)


def test_deleting_a_project_quota_deletes_its_user_quotas(front: Front) -> None:
    put(front, None, instances=3)
    put(front, instances=1, key_pairs=1)
    assert delete(front, None) == 202
    assert shown(front) == shown(front, None)
    assert shown(front)["instances"] == 4
    assert boot(front, TENANT, min_count=4).status_code == 202


def test_further_limits_of_a_user_are_in_force(front: Front) -> None:
    assert put(front, key_pairs=1, metadata_items=1, server_groups=1, server_group_members=1).status_code == 200
    shown(front)  # this process has its limits again
    assert boot(front, TENANT, metadata={"a": "1", "b": "2"}).status_code == 403
    assert boot(front, COLLEAGUE, metadata={"a": "1", "b": "2"}).status_code == 202

    def keypair(name: str, headers: dict[str, str]) -> int:
        body = {"keypair": {"name": name, "public_key": ED25519}}
        return int(front.client.simulate_post("/v2.1/os-keypairs", headers=headers, json=body).status_code)

    assert [keypair(name, TENANT) for name in ("one", "two")] == [200, 403]
    assert [keypair(name, COLLEAGUE) for name in ("one", "two")] == [200, 200]

    def group(name: str, headers: dict[str, str]) -> falcon.testing.Result:
        body = {"server_group": {"name": name, "policies": ["affinity"]}}
        return front.client.simulate_post("/v2.1/os-server-groups", headers=headers, json=body)

    mine = group("one", TENANT)
    assert message(group("two", TENANT), 403) == "Quota exceeded, too many server groups of this user."
    assert group("two", COLLEAGUE).status_code == 200
    hints = {"group": mine.json["server_group"]["id"]}
    body = {"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE}, "os:scheduler_hints": hints}
    assert [front.post(body, headers).status_code for headers in (COLLEAGUE, TENANT, TENANT)] == [202, 202, 403]


def test_a_limit_above_the_projects_adds_nothing(front: Front) -> None:
    put(front, None, metadata_items=1)
    put(front, force=True, metadata_items=5, instances=9)
    shown(front)
    assert boot(front, TENANT, metadata={"a": "1", "b": "2"}).status_code == 403
    assert message(boot(front, TENANT, min_count=5), 403).endswith("already used 0 of 4 instances")


def test_a_user_sees_the_limits_of_the_project(front: Front) -> None:
    """``/limits`` shows those of projects, as in the Compute API."""
    put(front, instances=1)
    assert front.get("/v2.1/limits", TENANT).json["limits"]["absolute"]["maxTotalInstances"] == 4


def test_user_quotas_need_the_right_to_project_quotas(front: Front) -> None:
    assert put(front, headers=TENANT, instances=1).status_code == 403
    assert front.client.simulate_delete("/v2.1/os-quota-sets/p1", headers=TENANT, params={"user_id": USER}).status_code == 403


def test_a_user_that_cannot_be_is_refused(front: Front) -> None:
    assert put(front, "u 1\n", instances=1).status_code == 400
    assert front.get("/v2.1/os-quota-sets/p1", user_id="u 1\n").status_code == 400
    assert front.get("/v2.1/os-quota-sets/p1", NEWEST, user="u").status_code == 400
