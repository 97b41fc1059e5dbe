"""The images of operators over HTTP: at ``/image``, and in the format of the Compute API."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from api.opts import ApiSettings
from db.api.servers import images
from images.store import FolderStore
from tests.support.api import TENANT, Front, with_status

ONE, TWO, THREE = (f"{n}0000000-0000-4000-8000-000000000000" for n in (1, 2, 3))


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    made = Front(tmp_path, ApiSettings(images_folder=str(tmp_path / "images"), max_limit=2))
    store, file = FolderStore(tmp_path / "images"), tmp_path / "disk"
    for number, (image_id, name) in enumerate(((ONE, "cirros"), (TWO, "debian"), (THREE, "cirros")), start=1):
        file.write_bytes(b"x" * 512 * number)
        properties = {"os_distro": name, "status": "forged"}
        record = store.add_image(file, name=name, image_id=image_id, min_disk=number, properties=properties)
        made.database.write(images.add_images, [record.to_stored()])
    yield made
    made.close()


def listed(front: Front, query: str = "") -> dict[str, Any]:
    answer = with_status(front.get(f"/image/v2/images{query}", TENANT), 200)
    found: dict[str, Any] = answer.json
    return found


def ids(front: Front, query: str) -> list[str]:
    return [image["id"] for image in listed(front, query)["images"]]


@pytest.mark.parametrize("path", ["/image", "/image/", "/image/v2", "/image/v2/"])
def test_the_versions_lead_to_the_images(front: Front, path: str) -> None:
    [version] = front.get(path).json["versions"]
    assert version["links"] == [{"rel": "self", "href": "http://falconframework.org/image/v2/"}]
    assert version["status"] == "CURRENT"


def test_an_image_has_the_image_service_fields(front: Front) -> None:
    image = front.get(f"/image/v2/images/{TWO}", TENANT).json
    expected = {"id": TWO, "name": "debian", "status": "active", "visibility": "public", "disk_format": "raw", "min_disk": 2}
    assert {key: image[key] for key in expected} == expected, "a property named status changes nothing"
    assert image["size"] == 1024
    assert image["owner"], "openstacksdk fails at an image without an owner"
    assert image["os_distro"] == "debian"
    assert image["os_hash_algo"] == "sha512"
    for unknown in ("debian", "no-such", "..%2Fx"):
        assert front.get(f"/image/v2/images/{unknown}", TENANT).status_code in (400, 404)


def test_schemas_describe_all_that_is_shown(front: Front) -> None:
    image, images = (front.get(f"/image/v2/schemas/{name}", TENANT).json for name in ("image", "images"))
    shown = front.get(f"/image/v2/images/{TWO}", TENANT).json
    jsonschema.validate(shown, image)
    jsonschema.validate(listed(front), images)
    assert shown.keys() - image["properties"] == {"os_distro"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(shown | {"os_distro": 1}, image)


def test_images_are_found_by_name_and_by_id(front: Front) -> None:
    assert ids(front, "?name=debian&os_hidden=False") == [TWO]
    assert sorted(ids(front, "?name=cirros&status=active&visibility=public")) == [ONE, THREE]
    assert ids(front, "?name=no-such") == []
    assert ids(front, "?name=debian&visibility=private") == []
    assert sorted(ids(front, f"?id=in:{ONE},{TWO}")) == [ONE, TWO]
    assert ids(front, f"?id={THREE}") == [THREE]


def test_images_are_found_by_any_field_and_property(front: Front) -> None:
    assert ids(front, "?os_distro=debian") == ids(front, "?min_disk=2") == ids(front, "?size=1024&protected=False") == [TWO]
    assert ids(front, "?colour=red") == ids(front, "?colour=") == ids(front, "?owner=me") == []


def test_an_image_has_no_tasks(front: Front) -> None:
    assert front.get(f"/image/v2/images/{ONE}/tasks", TENANT).json == {"tasks": []}
    assert front.get("/image/v2/images/no-such/tasks", TENANT).status_code == 404


def test_the_list_has_pages_and_an_order(front: Front) -> None:
    first = listed(front, "?sort=name:asc,size:desc")
    assert [image["id"] for image in first["images"]] == [THREE, ONE]
    rest = listed(front, first["next"].removeprefix("/v2/images"))
    assert [image["id"] for image in rest["images"]] == [TWO]
    assert "next" not in rest
    assert ids(front, "?sort_key=size&sort_dir=asc&limit=1") == [ONE]
    assert ids(front, f"?sort_key=size&sort_dir=asc&marker={TWO}") == [THREE]


@pytest.mark.parametrize("query", ["?size_min=1", "?sort=colour", "?sort=name:up", "?marker=no-such", "?limit=x", "?name=a&name=b"])
def test_what_lists_cannot_do_is_refused(front: Front, query: str) -> None:
    assert front.get(f"/image/v2/images{query}", TENANT).status_code == 400


def test_images_of_the_operator_are_not_changed_here(front: Front) -> None:
    for path in (f"/image/v2/images/{ONE}", f"/v2.1/images/{ONE}", f"/v2.1/images/{ONE}/metadata/os_distro"):
        assert front.client.simulate_delete(path).status_code == 403
    assert front.client.simulate_put(f"/v2.1/images/{ONE}/metadata", json={"metadata": {}}).status_code == 403
    assert front.get(f"/image/v2/images/{ONE}", TENANT).json["os_distro"] == "cirros"


def test_the_compute_api_shows_images_its_way(front: Front) -> None:
    image = front.get(f"/v2.1/images/{TWO}", TENANT).json["image"]
    expected = {"id": TWO, "name": "debian", "status": "ACTIVE", "progress": 100, "minDisk": 2, "OS-EXT-IMG-SIZE:size": 1024}
    assert {key: image[key] for key in expected} == expected
    assert image["metadata"] == {"os_distro": "debian"}
    assert [link["rel"] for link in image["links"]] == ["self", "bookmark", "alternate"]
    assert front.get(f"/v2.1/images/{TWO}/metadata/os_distro", TENANT).json == {"meta": {"os_distro": "debian"}}
    assert front.get(f"/v2.1/images/{TWO}/metadata/no-such", TENANT).status_code == 404
    newer = TENANT | {"OpenStack-API-Version": "compute 2.36"}
    assert front.get(f"/v2.1/images/{TWO}", newer).status_code == 404
    assert front.get(f"/v2.1/images/{TWO}/metadata", newer).json == {"metadata": {"os_distro": "debian"}}


def test_the_compute_api_lists_and_filters_them(front: Front) -> None:
    def found(**params: str) -> list[str]:
        answer = with_status(front.get("/v2.1/images/detail", TENANT, **params), 200)
        return sorted(image["name"] for image in answer.json["images"])

    assert found(name="debian") == found(minDisk="2") == ["debian"]
    assert found(status="active", name="cirros") == ["cirros", "cirros"]
    for nothing in ({"status": "SAVING"}, {"server": ONE}, {"type": "snapshot"}, {"changes-since": "2099-01-01T00:00:00Z"}):
        assert found(**nothing) == []
    first = front.get("/v2.1/images", TENANT, limit="2").json
    assert len(first["images"]) == 2
    assert set(first["images"][0]) == {"id", "name", "links"}
    marker = first["images"][-1]["id"]
    assert f"marker={marker}" in first["images_links"][0]["href"]
    assert len(front.get("/v2.1/images", TENANT, marker=marker).json["images"]) == 1
    for bad in ({"marker": "no-such"}, {"minRam": "x"}, {"changes-since": "x"}):
        assert front.get("/v2.1/images", TENANT, **bad).status_code == 400


def test_the_answer_without_a_store_says_the_remedy(tmp_path: Path) -> None:
    front = Front(tmp_path)
    try:
        for path in ("/image/v2/images", f"/image/v2/images/{ONE}"):
            answer = with_status(front.get(path, TENANT), 404)
            assert "set [images] folder, or name the image by its uuid" in answer.json["itemNotFound"]["message"]
    finally:
        front.close()


def test_a_missing_folder_is_no_client_error(front: Front, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "images")
    assert sorted(ids(front, "?limit=2") + ids(front, f"?marker={ids(front, '')[-1]}")) == [ONE, TWO, THREE]
    answer = with_status(front.get(f"/image/v2/images/{ONE}/file", TENANT), 503)
    assert answer.headers["Retry-After"]
    assert str(tmp_path) not in answer.text
