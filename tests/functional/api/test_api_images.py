"""The image store as an image service that only reads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.opts import ApiSettings
from images.store import FolderStore
from tests.support.api import TENANT, Front

ONE, TWO, THREE = (f"{n}0000000-0000-4000-8000-000000000000" for n in (1, 2, 3))


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    store, file = FolderStore(tmp_path / "images"), tmp_path / "disk"
    for number, (image_id, name) in enumerate(((ONE, "cirros"), (TWO, "debian"), (THREE, "cirros")), start=1):
        file.write_bytes(b"x" * 512 * number)
        store.add(file, name=name, image_id=image_id, min_disk=number, properties={"os_distro": name, "status": "forged"})
    made = Front(tmp_path, ApiSettings(images_folder=str(tmp_path / "images"), max_limit=2))
    yield made
    made.close()


def listed(front: Front, query: str = "") -> dict[str, Any]:
    answer = front.get(f"/image/v2/images{query}", TENANT)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


def ids(front: Front, query: str) -> list[str]:
    return [image["id"] for image in listed(front, query)["images"]]


@pytest.mark.parametrize("path", ["/image", "/image/", "/image/v2", "/image/v2/"])
def test_the_versions_lead_to_the_images(front: Front, path: str) -> None:
    [version] = front.get(path).json["versions"]
    assert version["links"] == [{"rel": "self", "href": "http://falconframework.org/image/v2/"}]
    assert version["status"] == "CURRENT"


def test_one_image_has_the_fields_of_an_image_service(front: Front) -> None:
    image = front.get(f"/image/v2/images/{TWO}", TENANT).json
    expected = {"id": TWO, "name": "debian", "status": "active", "visibility": "public", "disk_format": "raw", "min_disk": 2}
    assert {key: image[key] for key in expected} == expected, "a property named status changes nothing"
    assert image["size"] == 1024
    assert image["owner"], "openstacksdk fails at an image without an owner"
    assert image["os_distro"] == "debian"
    assert image["os_hash_algo"] == "sha512"
    for unknown in ("debian", "no-such", "..%2Fx"):
        assert front.get(f"/image/v2/images/{unknown}", TENANT).status_code in (400, 404)


def test_images_are_found_by_name_and_by_id(front: Front) -> None:
    assert ids(front, "?name=debian&os_hidden=False") == [TWO]
    assert sorted(ids(front, "?name=cirros&status=active&visibility=public")) == [ONE, THREE]
    assert ids(front, "?name=no-such") == []
    assert ids(front, "?name=debian&visibility=private") == []
    assert sorted(ids(front, f"?id=in:{ONE},{TWO}")) == [ONE, TWO]
    assert ids(front, f"?id={THREE}") == [THREE]


def test_the_list_has_pages_and_an_order(front: Front) -> None:
    first = listed(front, "?sort=name:asc,size:desc")
    assert [image["id"] for image in first["images"]] == [THREE, ONE]
    rest = listed(front, first["next"].removeprefix("/v2/images"))
    assert [image["id"] for image in rest["images"]] == [TWO]
    assert "next" not in rest
    assert ids(front, "?sort_key=size&sort_dir=asc&limit=1") == [ONE]
    assert ids(front, f"?sort_key=size&sort_dir=asc&marker={TWO}") == [THREE]


@pytest.mark.parametrize(
    "query", ["?colour=red", "?sort=colour", "?sort=name:up", "?marker=no-such", "?limit=x", "?name=a&name=b", "?owner=me"]
)
def test_what_lists_cannot_do_is_refused(front: Front, query: str) -> None:
    assert front.get(f"/image/v2/images{query}", TENANT).status_code == 400


def test_nothing_is_changed_here(front: Front) -> None:
    assert front.client.simulate_post("/image/v2/images", json={"name": "x"}).status_code == 405
    assert front.client.simulate_delete(f"/image/v2/images/{ONE}").status_code == 403
    assert front.get(f"/image/v2/images/{ONE}/file").status_code == 404


def test_without_a_store_the_answer_says_what_to_do(tmp_path: Path) -> None:
    front = Front(tmp_path)
    try:
        for path in ("/image/v2/images", f"/image/v2/images/{ONE}"):
            answer = front.get(path, TENANT)
            assert answer.status_code == 404
            assert "set [images] folder, or name the image by its uuid" in answer.json["itemNotFound"]["message"]
    finally:
        front.close()


def test_a_folder_that_is_gone_is_no_error_of_the_client(front: Front, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "images")
    for path in ("/image/v2/images", f"/image/v2/images/{ONE}"):
        answer = front.get(path, TENANT)
        assert answer.status_code == 503, answer.text
        assert answer.headers["Retry-After"]
        assert str(tmp_path) not in answer.text
