"""What one API process has answered is in force for the next request to any of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import falcon.testing
import pytest

from api.main import build_app
from db.api.deployment import aggregates
from db.api.rows.epochs import Epoch, bump_epoch
from db.api.servers import mappings
from db.api.servers import networks as network_rows
from db.sql.connection import ApiTransaction
from db.sql.counting import StatementCounter
from objects.spec import RequestSpec
from tests.support.api import IMAGE, TENANT, Front
from tests.support.ground import GROUNDS, Ground, on
from tests.support.pools import make_network

ADMIN_OF_P1 = {"X-Project-Id": "p1", "X-User-Id": "u1", "X-Roles": "admin"}
GROUPS = ADMIN_OF_P1 | {"OpenStack-API-Version": "compute 2.64"}
PINNED = ADMIN_OF_P1 | {"OpenStack-API-Version": "compute 2.37"}


BOOT_STATEMENTS = 4
"""Of a boot's transaction: its spec, request and mapping, and the charge, which returns the epochs too."""


class TwoFronts(Front):
    """Two API processes over one database: ``client`` makes changes, ``other`` is asked afterwards."""

    def __init__(self, place: Ground) -> None:
        super().__init__(place)
        self.other = falcon.testing.TestClient(build_app(self.settings, self.registry, self.database, self.bus, None))

    def change(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> falcon.testing.Result:
        answer = self.client.simulate_request(method, f"/v2.1{path}", headers=headers, json=body)
        assert answer.status_code < 300, answer.text
        return answer

    def boots(self, headers: dict[str, str] = TENANT, hints: dict[str, str] | None = None, **fields: Any) -> int:
        body: dict[str, Any] = {"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE} | fields}
        if hints:
            body["os:scheduler_hints"] = hints
        return self.other.simulate_post("/v2.1/servers", headers=headers, json=body).status_code

    def newest(self) -> RequestSpec:
        [server] = self.database.read(mappings.list_, mappings.ServerQuery(limit=1, sort=(("created_at", "desc"),)))
        return self.database.read(mappings.specs_by_batch, [server.batch_id])[server.batch_id]


@pytest.fixture(params=GROUNDS)
def fronts(tmp_path: Any, request: pytest.FixtureRequest) -> Iterator[TwoFronts]:
    place = Ground(request.param, tmp_path, embedded=True)
    made = TwoFronts(place)
    yield made
    place.end(made.close, place.release)


def test_a_boot_has_the_latest_extra_specs(fronts: TwoFronts) -> None:
    for number in range(3):
        assert fronts.boots() == 202
        fronts.change("POST", "/flavors/1/os-extra_specs", {"extra_specs": {"hw:cpu_policy": "shared", "a": str(number)}})
        assert fronts.boots() == 202
        assert fronts.newest().flavor.extra_specs["a"] == str(number)


def test_boots_with_a_key_have_the_latest_specs(fronts: TwoFronts) -> None:
    assert fronts.boots() == 202
    fronts.change("POST", "/flavors/1/os-extra_specs", {"extra_specs": {"a": "later"}})
    assert fronts.boots(TENANT | {"Idempotency-Key": "k1"}) == 202
    assert fronts.newest().flavor.extra_specs["a"] == "later"


def test_a_deleted_flavor_is_not_booted(fronts: TwoFronts) -> None:
    assert fronts.boots() == 202
    fronts.change("DELETE", "/flavors/1")
    assert fronts.boots() == 400


def test_access_to_a_flavor_ends_at_once(fronts: TwoFronts) -> None:
    fronts.change("POST", "/flavors/2/action", {"addTenantAccess": {"tenant": "p1"}})
    assert fronts.boots(flavorRef="2") == 202
    fronts.change("POST", "/flavors/2/action", {"removeTenantAccess": {"tenant": "p1"}})
    assert fronts.boots(flavorRef="2") == 400
    fronts.change("POST", "/flavors/2/action", {"addTenantAccess": {"tenant": "p1"}})
    assert fronts.boots(flavorRef="2") == 202


def test_a_deleted_group_takes_no_servers(fronts: TwoFronts) -> None:
    body = {"server_group": {"name": "g", "policy": "anti-affinity"}}
    group = fronts.change("POST", "/os-server-groups", body, GROUPS).json["server_group"]["id"]
    assert fronts.boots(hints={"group": group}) == 202
    fronts.change("DELETE", f"/os-server-groups/{group}", headers=GROUPS)
    assert fronts.boots(hints={"group": group}) == 400


def test_a_zone_that_is_gone_is_refused(fronts: TwoFronts) -> None:
    made = fronts.database.write(aggregates.create, "a", {"availability_zone": "az1"})
    assert fronts.boots(availability_zone="az1") == 202
    fronts.change("DELETE", f"/os-aggregates/{made.id}")
    assert fronts.boots(availability_zone="az1") == 400


def test_networks_count_as_they_are(fronts: TwoFronts) -> None:
    assert fronts.boots(PINNED, networks="auto") == 202
    first = make_network(fronts.database, "10.0.0.0/24", name="first")
    assert fronts.boots(PINNED, networks="auto") == 202
    assert fronts.newest().properties.networks == first.uuid
    second = make_network(fronts.database, "10.0.1.0/24", name="second")
    assert fronts.boots(PINNED, networks="auto") == 409
    fronts.database.write(network_rows.delete, second.uuid)
    assert fronts.boots(PINNED, networks="auto") == 202


@pytest.mark.parametrize(
    ("limits", "fields"),
    [({"instances": 1}, {}), ({"metadata_items": 0}, {"metadata": {"a": "b"}})],
    ids=["servers", "metadata"],
)
def test_default_limits_count_at_once(fronts: TwoFronts, limits: dict[str, int], fields: dict[str, Any]) -> None:
    assert fronts.boots(**fields) == 202
    fronts.change("PUT", "/os-quota-class-sets/default", {"quota_class_set": limits})
    assert fronts.boots(**fields) == 403
    fronts.change("PUT", "/os-quota-class-sets/default", {"quota_class_set": dict.fromkeys(limits, 100)})
    assert fronts.boots(**fields) == 202


@pytest.mark.parametrize(
    ("limit", "path", "kind", "fields"),
    [
        ("key_pairs", "/v2.1/os-keypairs", "keypair", {}),
        ("server_groups", "/v2.1/os-server-groups", "server_group", {"policies": ["affinity"]}),
    ],
    ids=["key pairs", "server groups"],
)
def test_limits_of_other_requests_count_at_once(
    fronts: TwoFronts, limit: str, path: str, kind: str, fields: dict[str, Any]
) -> None:
    def create(name: str) -> int:
        return fronts.other.simulate_post(path, headers=TENANT, json={kind: fields | {"name": name}}).status_code

    assert create("a") == 200
    fronts.change("PUT", "/os-quota-class-sets/default", {"quota_class_set": {limit: 1}})
    assert create("b") == 403


def test_what_is_shown_is_the_latest(fronts: TwoFronts) -> None:
    assert fronts.other.simulate_get("/v2.1/os-quota-class-sets/default").json["quota_class_set"]["instances"] == -1
    answer = fronts.change("PUT", "/os-quota-class-sets/default", {"quota_class_set": {"instances": 7}})
    assert answer.json["quota_class_set"]["instances"] == 7
    assert fronts.other.simulate_get("/v2.1/os-quota-class-sets/default").json["quota_class_set"]["instances"] == 7


def test_a_boot_reads_no_epochs_by_themselves(fronts: TwoFronts) -> None:
    assert fronts.boots() == 202
    with StatementCounter(fronts.database) as counter:
        assert fronts.boots() == 202
    assert counter.totals_by_database()[fronts.database.name].executions == BOOT_STATEMENTS


@on("fronts", "mariadb", "postgresql")
def test_a_boot_waits_for_no_change_under_way(fronts: TwoFronts) -> None:
    """Nor does a change wait for a boot: the charge reads the epochs without a lock."""
    assert fronts.boots() == 202
    bumped, booted = threading.Event(), threading.Event()

    def change(tx: ApiTransaction) -> None:
        bump_epoch(tx, Epoch.FLAVORS)
        bumped.set()
        assert booted.wait(30)

    with ThreadPoolExecutor(1) as other:
        changing = other.submit(fronts.database.write, change)
        assert bumped.wait(30)
        try:
            assert fronts.boots() == 202
        finally:
            booted.set()
        changing.result()
