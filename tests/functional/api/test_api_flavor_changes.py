"""Flavors over HTTP: what administrators create, change, give to projects and delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import falcon.testing
import pytest
import sqlalchemy as sa

from api.http import microversions
from db.api.projects import flavors
from db.api.rows import tables
from tests.support.api import IMAGE, TENANT, Front, front_on, with_status
from tests.support.ground import USUAL

FLAVORS = "/v2.1/flavors"
BODY = {"name": "m1.new", "ram": 512, "vcpus": 2, "disk": 10}


@pytest.fixture(params=USUAL)
def front(tmp_path: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    monkeypatch.setattr(microversions, "MAXIMUM", max(microversions.MAXIMUM, (2, 96)))
    with front_on(request.param, tmp_path) as made:
        yield made


def at(version: str, headers: dict[str, str] | None = None) -> dict[str, str]:
    return {"OpenStack-API-Version": f"compute {version}"} | (headers or {})


def send(front: Front, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> falcon.testing.Result:
    return front.client.simulate_request(method, path, headers=headers, json=body)


def create(front: Front, headers: dict[str, str] | None = None, **fields: Any) -> falcon.testing.Result:
    return send(front, "POST", FLAVORS, {"flavor": BODY | fields}, headers)


def message(answer: falcon.testing.Result) -> str:
    (body,) = answer.json.values()
    return str(body["message"])


def test_a_flavor_is_created_with_all_fields(front: Front) -> None:
    fields = {"id": 7, "OS-FLV-EXT-DATA:ephemeral": "5", "swap": "1024", "rxtx_factor": "2.5", "os-flavor-access:is_public": "no"}
    answer = with_status(create(front, at("2.55"), description="small", **fields), 200)
    shown = answer.json["flavor"]
    assert shown == front.get(f"{FLAVORS}/7", at("2.55")).json["flavor"]
    del shown["links"]
    assert shown == {
        "id": "7",
        "name": "m1.new",
        "ram": 512,
        "vcpus": 2,
        "disk": 10,
        "swap": 1024,
        "rxtx_factor": 2.5,
        "OS-FLV-EXT-DATA:ephemeral": 5,
        "OS-FLV-DISABLED:disabled": False,
        "os-flavor-access:is_public": False,
        "description": "small",
    }
    made = front.database.read(flavors.get, "7")
    assert (made.swap_mb, made.ephemeral_gb, made.is_public) == (1024, 5, False)


def test_a_bandwidth_factor_is_stored_shown_and_sorted(front: Front) -> None:
    factors = {"a": 2, "b": "0.1", "c": 3.40282e38}
    for flavor_id, factor in factors.items():
        create(front, id=flavor_id, name=flavor_id, rxtx_factor=factor)
    found = front.get(f"{FLAVORS}/detail", sort_key="rxtx_factor").json["flavors"]
    shown = [(each["id"], each["rxtx_factor"]) for each in found]
    assert (shown[0], shown[-2:]) == (("b", 0.1), [("a", 2.0), ("c", 3.40282e38)])
    assert {factor for _, factor in shown[1:-2]} == {1.0}


def test_an_earlier_releases_flavor_has_factor_1(front: Front) -> None:
    """It does not know the column."""
    row = {"flavor_id": "a", "name": "a", "vcpus": 1, "memory_mb": 1, "extra_specs": "{}"}
    front.database.write(lambda tx: tx.execute(sa.insert(tables.flavors).values(row)))
    assert front.get(f"{FLAVORS}/a").json["flavor"]["rxtx_factor"] == 1.0


@pytest.mark.parametrize("flavor_id", [{}, {"id": None}])
def test_a_flavor_without_id_gets_one_and_boots(front: Front, flavor_id: dict[str, Any]) -> None:
    made = create(front, **flavor_id).json["flavor"]["id"]
    assert len(made) == 36
    front.boot(headers=TENANT, flavorRef=made)
    assert send(front, "DELETE", f"{FLAVORS}/{made}").status_code == 202
    assert front.get(f"{FLAVORS}/{made}").status_code == 404
    assert send(front, "DELETE", f"{FLAVORS}/{made}").status_code == 404


@pytest.mark.parametrize(
    ("version", "extra", "swap"),
    [
        ("2.1", set(), ""),
        ("2.54", set(), ""),
        ("2.55", {"description"}, ""),
        ("2.61", {"description", "extra_specs"}, ""),
        ("2.75", {"description", "extra_specs"}, 0),
        ("2.96", {"description", "extra_specs"}, 0),
    ],
)
def test_the_shape_of_each_version(front: Front, version: str, extra: set[str], swap: str | int) -> None:
    made = with_status(create(front, at(version), id="new"), 200)
    for shown in (
        made.json["flavor"],
        front.get(f"{FLAVORS}/new", at(version, TENANT)).json["flavor"],
        front.get(f"{FLAVORS}/detail", at(version), marker="3", limit="1").json["flavors"][0],
    ):
        assert set(shown) & {"description", "extra_specs"} == extra
        assert shown["swap"] == swap if shown["id"] == "new" else True
    summary = front.get(FLAVORS, at(version)).json["flavors"][0]
    assert set(summary) == {"id", "name", "links"} | (extra & {"description"})
    unknown = front.get(FLAVORS, at(version), perhaps="1").status_code
    assert unknown == (400 if swap == 0 else 200)


def test_only_the_description_of_a_flavor_changes(front: Front) -> None:
    """From 2.55 on."""
    put = {"flavor": {"description": "retired soon"}}
    assert send(front, "PUT", f"{FLAVORS}/1", put, at("2.54")).status_code == 404
    answer = send(front, "PUT", f"{FLAVORS}/1", put, at("2.55"))
    assert (answer.status_code, answer.json["flavor"]["description"]) == (200, "retired soon")
    assert send(front, "PUT", f"{FLAVORS}/1", {"flavor": {"description": None}}, at("2.61")).json["flavor"]["extra_specs"] == {
        "a": "b"
    }
    assert front.get(f"{FLAVORS}/1", at("2.55")).json["flavor"]["description"] is None
    assert send(front, "PUT", f"{FLAVORS}/1", {"flavor": {"name": "other"}}, at("2.55")).status_code == 400
    assert send(front, "PUT", f"{FLAVORS}/none", put, at("2.55")).status_code == 404
    long = {"flavor": {"description": "\N{HOT BEVERAGE}" * 30000}}
    assert message(send(front, "PUT", f"{FLAVORS}/1", long, at("2.55"))).startswith("description: is longer than 65535 bytes")


def test_a_server_keeps_no_description_of_its_flavor(front: Front) -> None:
    """It may be long, and each request would carry it."""
    create(front, at("2.55"), id="new", description="x" * 60000)
    uuid = front.boot(headers=TENANT, flavorRef="new")
    assert front.get(f"/v2.1/servers/{uuid}", at("2.47")).json["server"]["flavor"]["original_name"] == "m1.new"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"vcpus": 0}, "flavor.vcpus: 0 does not fit"),
        ({"vcpus": "0"}, "flavor.vcpus: 0 is not a whole number from 1"),
        ({"ram": "9999999999"}, "flavor.ram: 9999999999 is not a whole number"),
        ({"disk": -1}, "flavor.disk: -1 does not fit"),
        ({"swap": 1.5}, "flavor.swap: 1.5 is not of type integer"),
        ({"rxtx_factor": 0}, "flavor.rxtx_factor: 0 does not fit"),
        ({"rxtx_factor": 1e39}, "flavor.rxtx_factor: 1e+39 does not fit"),
        ({"rxtx_factor": "0.0"}, "rxtx_factor: 0 is not a number above 0"),
        ({"rxtx_factor": "9" * 40}, "rxtx_factor: 1e+40 is not a number above 0"),
        ({"rxtx_factor": "-1"}, "flavor.rxtx_factor: '-1' does not fit"),
        ({"name": " x"}, "flavor.name: ' x' is not a valid name"),
        ({"id": "a/b"}, "flavor.id: 'a/b' does not fit"),
        ({"id": 10**30}, "flavor.id: 1000000000000000000000000000000 does not fit"),
        ({"description": "x"}, "flavor.description: is not a field"),
        ({"os-flavor-access:is_public": "maybe"}, "flavor.os-flavor-access:is_public: 'maybe' is not one of"),
    ],
)
def test_an_impossible_flavor_is_refused_by_name(front: Front, fields: dict[str, Any], text: str) -> None:
    answer = with_status(create(front, **fields), 400)
    assert message(answer).startswith(text)
    assert len(front.database.read(flavors.list_all)) == 3


@pytest.mark.parametrize("taken", [{"id": "1"}, {"name": "m1.small"}])
def test_a_used_id_or_name_is_a_conflict(front: Front, taken: dict[str, Any]) -> None:
    assert create(front, **taken).status_code == 409


def test_projects_are_given_access_to_a_private_flavor(front: Front) -> None:
    """They then list, show and boot it."""

    def act(name: str, tenant: str, version: str = "2.1") -> falcon.testing.Result:
        return send(front, "POST", f"{FLAVORS}/2/action", {name: {"tenant": tenant}}, at(version))

    def listed(**query: str) -> list[str]:
        return [flavor["id"] for flavor in front.get(FLAVORS, TENANT, **query).json["flavors"]]

    server = {"server": {"name": "web", "flavorRef": "2", "imageRef": IMAGE}}
    assert front.post(server, TENANT).status_code == 400
    assert front.get(f"{FLAVORS}/2/os-flavor-access").json == {"flavor_access": []}
    access = {"flavor_access": [{"flavor_id": "2", "tenant_id": "p1"}]}
    granted = act("addTenantAccess", "p1")
    assert (granted.status_code, granted.json) == (200, access)
    assert front.get(f"{FLAVORS}/2/os-flavor-access").json == access
    assert listed() == listed(is_public="false") == ["1", "2"]
    assert front.get(f"{FLAVORS}/2", TENANT).status_code == 200
    assert front.post(server, TENANT).status_code == 202
    assert [flavor["id"] for flavor in front.get(FLAVORS, {"X-Project-Id": "p1", "X-Roles": "admin"}).json["flavors"]] == [
        "3",
        "1",
        "2",
    ]
    assert act("addTenantAccess", "p1").status_code == 409
    assert act("removeTenantAccess", "p1").json == {"flavor_access": []}
    assert act("removeTenantAccess", "p1").status_code == 404
    assert listed() == ["1"]


@pytest.mark.parametrize(
    ("flavor_id", "body", "version", "status"),
    [
        ("1", {"addTenantAccess": {"tenant": "p1"}}, "2.6", 200),
        ("1", {"addTenantAccess": {"tenant": "p1"}}, "2.7", 409),
        ("nope", {"addTenantAccess": {"tenant": "p1"}}, "2.7", 404),
        ("nope", {"removeTenantAccess": {"tenant": "p1"}}, "2.7", 404),
        ("2", {"addTenantAccess": {"tenant": "p 1"}}, "2.7", 400),
        ("2", {"addTenantAccess": {"tenant": ""}}, "2.7", 400),
        ("2", {"addTenantAccess": {}}, "2.7", 400),
        ("2", {"addTenantAccess": {"tenant": "p1"}, "removeTenantAccess": {"tenant": "p1"}}, "2.7", 400),
        ("2", {"grant": {"tenant": "p1"}}, "2.7", 400),
        ("2", {}, "2.7", 400),
    ],
)
def test_access_that_cannot_be_given(front: Front, flavor_id: str, body: dict[str, Any], version: str, status: int) -> None:
    assert send(front, "POST", f"{FLAVORS}/{flavor_id}/action", body, at(version)).status_code == status


def test_a_public_flavor_has_no_list_of_projects(front: Front) -> None:
    assert front.get(f"{FLAVORS}/1/os-flavor-access").status_code == 404


def test_extra_specs_are_set_shown_and_deleted(front: Front) -> None:
    """Those that are not given stay; numbers become text."""
    path = f"{FLAVORS}/1/os-extra_specs"
    given = send(front, "POST", path, {"extra_specs": {"hw:mem_page_size": 2048, "trait:SSD": "required"}})
    assert (given.status_code, given.json) == (200, {"extra_specs": {"hw:mem_page_size": "2048", "trait:SSD": "required"}})
    assert front.get(path, TENANT).json["extra_specs"] == {"a": "b", "hw:mem_page_size": "2048", "trait:SSD": "required"}
    assert send(front, "PUT", f"{path}/a", {"a": "c"}).json == {"a": "c"}
    assert front.get(f"{path}/a", TENANT).json == {"a": "c"}
    deleted = send(front, "DELETE", f"{path}/a")
    assert (deleted.status_code, deleted.text) == (200, "")
    assert front.get(f"{path}/a").status_code == send(front, "DELETE", f"{path}/a").status_code == 404
    assert front.database.read(flavors.get, "1").extra_specs == {"hw:mem_page_size": "2048", "trait:SSD": "required"}


@pytest.mark.parametrize(
    ("method", "key", "body", "status"),
    [
        ("POST", "", {"extra_specs": {"resources:GPU": "1"}}, 400),
        ("POST", "", {"extra_specs": {"trait:SSD": "maybe"}}, 400),
        ("POST", "", {"extra_specs": {"k": "x" * 256}}, 400),
        ("POST", "", {"extra_specs": {"k/": "x"}}, 400),
        ("POST", "", {"extra_specs": {"k": None}}, 400),
        ("POST", "", {"extra_specs": {"k": True}}, 400),
        ("POST", "", {"extra_specs": {"k": 10**100}}, 400),
        ("POST", "", {"extra_specs": {f"k{n}": "x" for n in range(128)}}, 400),
        ("POST", "", {"k": "v"}, 400),
        ("PUT", "/k", {"other": "v"}, 400),
        ("PUT", "/k", {"k": "v", "other": "v"}, 400),
        ("PUT", "/trait:SSD", {"trait:SSD": "1"}, 400),
        ("PUT", "/k", {}, 400),
    ],
)
def test_extra_specs_that_the_scheduler_refuses(front: Front, method: str, key: str, body: dict[str, Any], status: int) -> None:
    assert send(front, method, f"{FLAVORS}/1/os-extra_specs{key}", body).status_code == status
    assert front.database.read(flavors.get, "1").extra_specs == {"a": "b"}


def test_extra_specs_of_a_missing_flavor_are_refused(front: Front) -> None:
    path = f"{FLAVORS}/nope/os-extra_specs"
    assert send(front, "POST", path, {"extra_specs": {"k": "v"}}).status_code == 404
    assert send(front, "PUT", f"{path}/k", {"k": "v"}).status_code == 404
    assert send(front, "DELETE", f"{path}/k").status_code == front.get(path).status_code == 404


def test_a_tenant_changes_no_flavor(front: Front) -> None:
    for method, path, body in (
        ("POST", "", {"flavor": BODY}),
        ("PUT", "/1", {"flavor": {"description": "x"}}),
        ("DELETE", "/1", None),
        ("POST", "/2/action", {"addTenantAccess": {"tenant": "p1"}}),
        ("POST", "/2/action", {"removeTenantAccess": {"tenant": "p1"}}),
        ("GET", "/2/os-flavor-access", None),
        ("POST", "/1/os-extra_specs", {"extra_specs": {"k": "v"}}),
        ("PUT", "/1/os-extra_specs/k", {"k": "v"}),
        ("DELETE", "/1/os-extra_specs/a", None),
    ):
        assert send(front, method, f"{FLAVORS}{path}", body, at("2.55", TENANT)).status_code == 403, (method, path)


@pytest.mark.parametrize(
    ("query", "order"),
    [
        ({}, ["3", "1", "2"]),
        ({"sort_dir": "desc"}, ["3", "2", "1"]),
        ({"sort_key": "name"}, ["2", "3", "1"]),
        ({"sort_key": "memory_mb", "sort_dir": "desc"}, ["2", "1", "3"]),
        ({"sort_key": "rxtx_factor"}, ["3", "1", "2"]),
        ({"sort_key": "description"}, ["3", "1", "2"]),
    ],
)
def test_flavors_are_sorted_by_what_the_query_names(front: Front, query: dict[str, Any], order: list[str]) -> None:
    found = front.get(FLAVORS, is_public="None", **query).json["flavors"]
    assert [flavor["id"] for flavor in found] == order
    page = front.get(FLAVORS, is_public="None", limit="1", marker=order[0], **query).json["flavors"]
    assert [flavor["id"] for flavor in page] == order[1:2]
