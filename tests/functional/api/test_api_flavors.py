"""Flavors over HTTP."""

from __future__ import annotations

import pytest

from db.api.projects import flavors
from objects.flavor import Flavor
from tests.support.api import TENANT, Front, with_status


def test_a_flavor_is_shown_like_the_compute_api(front: Front) -> None:
    """An empty swap is an empty text there."""
    shown = front.get("/v2.1/flavors/1").json["flavor"]
    assert shown.pop("links")[0] == {"rel": "self", "href": "http://falconframework.org/v2.1/flavors/1"}
    assert shown == {
        "id": "1",
        "name": "m1.small",
        "ram": 2048,
        "disk": 20,
        "vcpus": 1,
        "swap": "",
        "rxtx_factor": 1.0,
        "OS-FLV-EXT-DATA:ephemeral": 0,
        "OS-FLV-DISABLED:disabled": False,
        "os-flavor-access:is_public": True,
    }
    assert front.get("/v2.1/flavors/2").json["flavor"]["swap"] == 512
    assert front.get("/v2.1/flavors/1/os-extra_specs").json == {"extra_specs": {"a": "b"}}


def test_lists_are_short_or_detailed_by_size(front: Front) -> None:
    """Public ones, unless an administrator asks for others."""
    short = front.get("/v2.1/flavors").json["flavors"]
    assert [set(flavor) for flavor in short] == [{"id", "name", "links"}] * 2
    assert [flavor["id"] for flavor in short] == ["3", "1"]
    assert [flavor["ram"] for flavor in front.get("/v2.1/flavors/detail", is_public="None").json["flavors"]] == [1024, 2048, 4096]
    assert [flavor["id"] for flavor in front.get("/v2.1/flavors", is_public="false").json["flavors"]] == ["2"]
    assert [flavor["id"] for flavor in front.get("/v2.1/flavors", minRam="2000", minDisk="1").json["flavors"]] == ["1"]


def test_a_tenant_sees_no_private_flavor(front: Front) -> None:
    """Neither listed nor by its id. One that is disabled is not listed either."""
    assert [flavor["id"] for flavor in front.get("/v2.1/flavors", TENANT, is_public="none").json["flavors"]] == ["1"]
    assert front.get("/v2.1/flavors/3", TENANT).status_code == 200
    assert front.get("/v2.1/flavors/2", TENANT).status_code == 404
    assert front.get("/v2.1/flavors/2/os-extra_specs", TENANT).status_code == 404


def test_pages_of_flavors_are_linked(front: Front) -> None:
    """From behind the marker on."""
    page = front.get("/v2.1/flavors", limit="1").json
    assert [flavor["id"] for flavor in page["flavors"]] == ["3"]
    assert page["flavors_links"] == [{"rel": "next", "href": "http://falconframework.org/v2.1/flavors?limit=1&marker=3"}]
    assert "flavors_links" not in front.get("/v2.1/flavors", limit="1", marker="3").json


def test_a_new_flavor_is_found_at_once(front: Front) -> None:
    """The cache looks again before it says no."""
    assert front.get("/v2.1/flavors/9").status_code == 404
    front.database.write(flavors.create, Flavor(flavor_id="9", name="new", vcpus=1, memory_mb=1))
    assert front.get("/v2.1/flavors/9").json["flavor"]["name"] == "new"


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("is_public=perhaps", "is_public"),
        ("minRam=x", "minRam"),
        ("limit=-1", "limit"),
        ("marker=zz", "marker"),
        ("sort_key=created_at", "sort_key"),
        ("sort_dir=up", "sort_dir"),
    ],
)
def test_a_bad_query_is_refused_by_name(front: Front, query: str, name: str) -> None:
    """400."""
    answer = with_status(front.client.simulate_get(f"/v2.1/flavors/detail?{query}"), 400)
    assert answer.json["badRequest"]["message"].startswith(f"{name}: ")
