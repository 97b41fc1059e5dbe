"""Uploads of images over HTTP: who sees an image and when, what is refused, and what a killed process leaves."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import falcon.testing
import jsonschema
import pytest

from api.opts import ApiSettings
from conductor.operation_tasks import task_of
from conductor.tidy import remove_images
from db.api.operations import accepting, operations, steps
from db.api.servers import images, mappings, server_images
from db.api.servers.images import ImageQuery
from images.store import FolderStore
from objects import errors
from objects.spec import Image
from tests.functional.api.test_api_operations import act, booted, write
from tests.support.api import IMAGE, NEWEST, OTHER_TENANT, TENANT, Front, with_status
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL

IMAGES = "/image/v2/images"
CONTENT = b"x" * 1024
READER = TENANT | {"X-Roles": "reader"}
OCTETS = {"Content-Type": "application/octet-stream"}


front = front_fixture(grounds=USUAL, images=True)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    (tmp_path / "images").mkdir(exist_ok=True)
    return FolderStore(tmp_path / "images")


def created(front: Front, headers: dict[str, str] = TENANT, **fields: Any) -> dict[str, Any]:
    answer = front.client.simulate_post(IMAGES, headers=headers, json={"name": "mine", "disk_format": "raw"} | fields)
    assert answer.status_code == 201, answer.text
    image: dict[str, Any] = answer.json
    assert answer.headers["Location"].endswith(f"{IMAGES}/{image['id']}")
    return image


def upload(front: Front, image_id: str, content: bytes = CONTENT, headers: dict[str, str] = TENANT) -> falcon.testing.Result:
    return front.client.simulate_put(f"{IMAGES}/{image_id}/file", headers=headers | OCTETS, body=content)


def uploaded(front: Front, **fields: Any) -> str:
    image_id: str = created(front, **fields)["id"]
    answer = upload(front, image_id)
    assert answer.status_code == 204, answer.text
    return image_id


def seen(front: Front, image_id: str, headers: dict[str, str] = TENANT) -> dict[str, Any] | None:
    answer = front.get(f"{IMAGES}/{image_id}", headers)
    every = with_status(front.get(IMAGES, headers), 200)
    listed = [image for image in every.json["images"] if image["id"] == image_id]
    if answer.status_code == 404:
        assert listed == []
        return None
    assert listed == [answer.json]
    image: dict[str, Any] = answer.json
    return image


def test_project_has_a_quota_of_images(tmp_path: Path) -> None:
    front = Front(tmp_path, ApiSettings(images_folder=str(tmp_path / "images"), images=2))
    first = created(front)["id"]
    created(front)
    refused = with_status(front.client.simulate_post(IMAGES, headers=TENANT, json={"name": "third"}), 403)
    assert "Quota exceeded for images: the project has 2 of 2" in refused.text
    created(front, headers=OTHER_TENANT)
    assert front.client.simulate_delete(f"{IMAGES}/{first}", headers=TENANT).status_code == 204
    created(front)
    front.close()


def test_project_has_a_quota_of_stored_bytes(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    front = Front(tmp_path, ApiSettings(images_folder=str(tmp_path / "images"), image_gigabytes=0))
    refused = with_status(front.client.simulate_post(IMAGES, headers=TENANT, json={"name": "first"}), 403)
    assert "Quota exceeded for image_gigabytes: the project has 0.0 of 0 GiB" in refused.text
    front.close()


def test_images_of_a_project_are_created_slowly(front: Front, store: FolderStore) -> None:
    answers = [front.client.simulate_post(IMAGES, headers=TENANT, json={"name": "many"}).status_code for _ in range(40)]
    assert set(answers) == {201, 429}
    assert front.client.simulate_post(IMAGES, headers=OTHER_TENANT, json={"name": "one"}).status_code == 201


def test_changed_record_is_listed_anew(front: Front, store: FolderStore) -> None:
    image_id = uploaded(front)
    assert (seen(front, image_id) or {})["name"] == "mine"
    body = [{"op": "replace", "path": "/name", "value": "renamed"}]
    kind = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
    assert front.client.simulate_patch(f"{IMAGES}/{image_id}", headers=TENANT | kind, body=json.dumps(body)).status_code == 200
    assert (seen(front, image_id) or {})["name"] == "renamed"


def test_image_content_is_downloaded(front: Front, store: FolderStore) -> None:
    image_id = created(front)["id"]
    waiting = front.get(f"{IMAGES}/{image_id}/file", READER)
    assert (waiting.status_code, waiting.content) == (204, b"")
    assert upload(front, image_id).status_code == 204
    answer = front.get(f"{IMAGES}/{image_id}/file", READER)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["Content-Length"] == str(len(CONTENT))
    assert front.get(f"{IMAGES}/{image_id}/file", OTHER_TENANT).status_code == 404
    of_operator = store.add_image([CONTENT], name="debian", image_id="70a599e0-31e7-49b7-b260-868f441e8001")
    assert front.get(f"{IMAGES}/{of_operator.id}/file", OTHER_TENANT).status_code == 404, "it may be a host's"
    front.database.write(images.add_images, [of_operator.to_stored()])
    assert front.get(f"{IMAGES}/{of_operator.id}/file", OTHER_TENANT).content == CONTENT


def test_an_uploaded_image_has_its_md5(front: Front, store: FolderStore) -> None:
    image = seen(front, uploaded(front))
    assert image is not None
    assert image["checksum"] == hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


def test_an_image_is_queued_until_its_content_arrives(front: Front, store: FolderStore) -> None:
    made = created(front, min_disk=2, os_distro="debian")
    assert (made["status"], made["visibility"], made["disk_format"], made["size"]) == ("queued", "private", "raw", None)
    jsonschema.validate(made, front.get("/image/v2/schemas/image", TENANT).json)
    assert seen(front, made["id"]) == made
    assert upload(front, made["id"]).status_code == 204
    image = seen(front, made["id"])
    assert image is not None
    assert (image["status"], image["size"], image["min_disk"], image["os_distro"]) == ("active", 1024, 2, "debian")
    assert image["owner"] == made["owner"]
    assert b"".join(store.read_content(made["id"])) == CONTENT


def test_it_belongs_to_its_project(front: Front) -> None:
    image_id = uploaded(front)
    queued = created(front)["id"]
    for each in (image_id, queued):
        assert seen(front, each, OTHER_TENANT) is None
        assert upload(front, each, headers=OTHER_TENANT).status_code == 404
        assert front.client.simulate_delete(f"{IMAGES}/{each}", headers=OTHER_TENANT).status_code == 404
        assert front.client.simulate_delete(f"{IMAGES}/{each}", headers=READER).status_code == 403
    assert front.client.simulate_post(IMAGES, headers=READER, json={"name": "x"}).status_code == 403
    assert upload(front, queued, headers=READER).status_code == 403


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"visibility": "public"}, "visibility"),
        ({"disk_format": "vmdk"}, "disk_format"),
        ({"container_format": "ovf"}, "container_format"),
        ({"id": "11111111-1111-4111-8111-111111111111"}, "id"),
        ({"size": 5}, "size"),
        ({"protected": True}, "protected"),
        ({"tags": ["a" * 256]}, "tags"),
        ({"tags": [""]}, "tags"),
        ({"min_disk": -1}, "min_disk"),
        ({"os_distro": 7}, "os_distro"),
    ],
)
def test_what_cannot_be_had_is_refused(front: Front, fields: dict[str, Any], words: str) -> None:
    answer = with_status(front.client.simulate_post(IMAGES, headers=TENANT, json={"name": "mine"} | fields), 400)
    assert words in answer.json["badRequest"]["message"]
    assert front.database.read(server_images.list_incomplete, None) == []


def test_unsafe_content_is_refused_and_can_be_replaced(front: Front, store: FolderStore) -> None:
    image_id = created(front)["id"]
    for content, words in ((b"", "empty"), (b"QFI\xfb" + bytes(1020), "qcow2")):
        answer = upload(front, image_id, content)
        assert answer.status_code == 400, answer.text
        assert words in answer.json["badRequest"]["message"]
    answer = with_status(front.client.simulate_put(f"{IMAGES}/{image_id}/file", headers=TENANT, json={}), 415)
    assert (seen(front, image_id) or {})["status"] == "queued"
    assert upload(front, image_id).status_code == 204
    assert upload(front, image_id, b"another").status_code == 409
    assert b"".join(store.read_content(image_id)) == CONTENT


def test_what_a_killed_process_has_stored_counts(front: Front, store: FolderStore) -> None:
    """It was killed before its row was complete. The client that sends the content again is told that it is there."""
    image = created(front)
    store.add_image([CONTENT], name="mine", image_id=image["id"], owner=image["owner"])
    assert (seen(front, image["id"]) or {})["status"] == "queued"
    assert upload(front, image["id"], b"another").status_code == 409
    assert (seen(front, image["id"]) or {})["status"] == "active"
    assert b"".join(store.read_content(image["id"])) == CONTENT


def test_a_deleted_image_leaves_nothing(front: Front, store: FolderStore) -> None:
    complete, queued = uploaded(front), created(front)["id"]
    lost = created(front)
    store.add_image([CONTENT], name="mine", image_id=lost["id"], owner=lost["owner"])  # and then the process was killed
    for path in (f"{IMAGES}/{complete}", f"{IMAGES}/{queued}", f"/v2.1/images/{lost['id']}"):
        assert front.client.simulate_delete(path, headers=TENANT).status_code == 204
        assert front.client.simulate_delete(path, headers=TENANT).status_code == 404
    assert upload(front, queued).status_code == 404
    remove_images(front.database, store)
    assert store.list_images() == []


def test_an_image_deleted_during_its_upload_leaves_nothing(front: Front, store: FolderStore) -> None:
    image = created(front)
    row = front.database.read(server_images.get, image["id"], None)
    assert row is not None
    assert front.client.simulate_delete(f"{IMAGES}/{image['id']}", headers=TENANT).status_code == 204
    remove_images(front.database, store)
    stored = store.add_image([CONTENT], name="mine", image_id=image["id"], owner=image["owner"])
    assert not front.database.write(server_images.complete_upload, row, stored.stored_content, 1.0)
    remove_images(front.database, store)
    with pytest.raises(errors.NotFound):
        store.get_record(image["id"])


def test_its_properties_are_metadata_of_the_compute_api(front: Front) -> None:
    image_id = uploaded(front, one="1")
    path = f"/v2.1/images/{image_id}/metadata"
    put, post, delete = front.client.simulate_put, front.client.simulate_post, front.client.simulate_delete
    assert front.get(path, TENANT).json == {"metadata": {"one": "1"}}
    assert post(path, headers=TENANT, json={"metadata": {"two": "2"}}).json == {"metadata": {"one": "1", "two": "2"}}
    assert put(f"{path}/one", headers=TENANT, json={"meta": {"one": "I"}}).json == {"meta": {"one": "I"}}
    assert put(f"{path}/one", headers=TENANT, json={"meta": {"two": "I"}}).status_code == 400
    assert delete(f"{path}/two", headers=TENANT).status_code == 204
    assert delete(f"{path}/two", headers=TENANT).status_code == 404
    assert (seen(front, image_id) or {})["one"] == "I"
    assert put(path, headers=TENANT, json={"metadata": {"three": "3"}}).json == {"metadata": {"three": "3"}}
    assert front.get(f"{path}/three", TENANT).json == {"meta": {"three": "3"}}
    assert put(path, headers=TENANT, json={"metadata": {str(n): "x" for n in range(129)}}).status_code == 403
    assert put(path, headers=OTHER_TENANT, json={"metadata": {}}).status_code == 404
    assert put(path, headers=READER, json={"metadata": {}}).status_code == 403
    assert put(path, headers=TENANT | {"OpenStack-API-Version": "compute 2.39"}, json={"metadata": {}}).status_code == 404


def test_a_property_has_no_name_of_a_field(front: Front) -> None:
    image_id = uploaded(front)
    path = f"/v2.1/images/{image_id}/metadata"
    answer = with_status(front.client.simulate_put(path, headers=TENANT, json={"metadata": {"status": "forged", "a": "b"}}), 400)
    assert "status" in answer.json["badRequest"]["message"]
    assert front.get(path, TENANT).json == {"metadata": {}}


def test_an_image_without_content_has_no_metadata(front: Front) -> None:
    image_id = created(front, a="b")["id"]
    path = f"/v2.1/images/{image_id}/metadata"
    assert front.get(path, TENANT).json == {"metadata": {"a": "b"}}
    assert front.client.simulate_put(path, headers=TENANT, json={"metadata": {}}).status_code == 409
    assert front.get(f"/v2.1/images/{image_id}", TENANT).json["image"]["status"] == "SAVING"


def test_a_rebuild_from_an_oversized_image_is_refused(front: Front) -> None:
    """For its state first, as everything else is."""
    server = front.boot("web", TENANT)

    def rebuild(image_id: str) -> tuple[int, str]:
        body = {"rebuild": {"imageRef": image_id}}
        answer = front.client.simulate_post(f"/v2.1/servers/{server}/action", headers=TENANT, json=body)
        return answer.status_code, answer.text

    large = uploaded(front, min_ram=2049)
    assert rebuild(large)[0] == 409
    front.bring_up(server)
    status, said = rebuild(large)
    assert (status, "rebuild.imageRef: the image needs 2049 MiB of memory" in said) == (400, True)
    assert rebuild(uploaded(front, min_ram=2048))[0] == 503  # it fits, and no scheduler answers whether its host may run it


def test_a_boot_from_an_oversized_image_is_refused(front: Front) -> None:
    """The flavor has 2048 MiB and 20 GiB."""

    def boot(image_id: str, headers: dict[str, str] = TENANT) -> falcon.testing.Result:
        return front.post({"server": {"name": "web", "flavorRef": "1", "imageRef": image_id}}, headers)

    for needs, words in (({"min_ram": 2049}, "needs 2049 MiB of memory"), ({"min_disk": 21}, "needs a disk of 21 GiB")):
        answer = with_status(boot(uploaded(front, **needs)), 400)
        assert words in answer.json["badRequest"]["message"]
    fitting = uploaded(front, min_ram=2048, min_disk=20)
    assert boot(fitting).status_code == 202
    assert "could not be found" in boot(fitting, OTHER_TENANT).json["badRequest"]["message"]
    assert boot("11111111-1111-4111-8111-111111111111").status_code == 202, "it may be elsewhere"


def test_without_a_store_nothing_is_created(tmp_path: Path) -> None:
    front = Front(tmp_path)
    try:
        answer = with_status(front.client.simulate_post(IMAGES, headers=TENANT | NEWEST, json={"name": "x"}), 404)
        assert "set [images] folder" in answer.json["itemNotFound"]["message"]
        assert front.database.read(server_images.list_incomplete, None) == []
    finally:
        front.close()


def change(
    front: Front, image_id: str, *changes: dict[str, Any], headers: dict[str, str] = TENANT, version: str = "2.1"
) -> falcon.testing.Result:
    kind = {"Content-Type": f"application/openstack-images-v{version}-json-patch"}
    return front.client.simulate_patch(f"{IMAGES}/{image_id}", headers=headers | kind, body=json.dumps(changes))


def test_an_image_is_changed_by_a_json_patch(front: Front) -> None:
    image_id = uploaded(front, os_distro="debian", gone="soon")
    answer = change(
        front,
        image_id,
        {"op": "replace", "path": "/name", "value": "other"},
        {"op": "replace", "path": "/min_ram", "value": 64},
        {"op": "add", "path": "/a", "value": "c"},
        {"op": "replace", "path": "/os_distro", "value": "ubuntu"},
        {"op": "remove", "path": "/gone"},
        {"op": "replace", "path": "/visibility", "value": "private"},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json == seen(front, image_id)
    changed = {name: answer.json.get(name) for name in ("name", "min_ram", "min_disk", "a", "os_distro", "gone")}
    assert changed == {"name": "other", "min_ram": 64, "min_disk": 0, "a": "c", "os_distro": "ubuntu", "gone": None}


def test_an_image_accepts_the_earlier_json_patch_form(front: Front) -> None:
    image_id = uploaded(front, gone="soon")
    changes: list[dict[str, Any]] = [{"add": "/a", "value": "b"}, {"replace": "/name", "value": "other"}, {"remove": "/gone"}]
    answer = with_status(change(front, image_id, *changes, version="2.0"), 200)
    assert (answer.json["a"], answer.json["name"], "gone" in answer.json) == ("b", "other", False)
    for wrong in ({"value": "b"}, {"add": "/a", "remove": "/a"}, {"add": "a", "value": "b"}):
        assert change(front, image_id, wrong, version="2.0").status_code == 400
    assert seen(front, image_id) == answer.json


def test_a_list_pages_through_images_of_every_state(front: Front, store: FolderStore) -> None:
    waiting = [created(front, name=name)["id"] for name in ("c", "a")]
    complete = [uploaded(front, name=name) for name in ("d", "b", "e")]
    uploaded_elsewhere = created(front, OTHER_TENANT, name="b")["id"]
    assert upload(front, uploaded_elsewhere, headers=OTHER_TENANT).status_code == 204

    def in_pages(query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        path: str | None = f"/v2/images?limit=2&{query}"
        while path:
            page = front.get(f"/image{path}", TENANT).json
            found, path = found + page["images"], page.get("next")
        return found

    assert [image["name"] for image in in_pages("sort=name:asc")] == ["a", "b", "c", "d", "e"]
    assert [image["name"] for image in in_pages("sort=status:desc,name:desc")] == ["c", "a", "e", "d", "b"]
    assert [image["id"] for image in in_pages("")] == [*complete[::-1], *waiting[::-1]]
    assert [image["id"] for image in in_pages("status=queued&sort=id:asc")] == sorted(waiting)
    assert front.get(f"{IMAGES}?marker={uploaded_elsewhere}", TENANT).status_code == 400


def test_a_list_does_not_pay_for_other_projects(front: Front, store: FolderStore) -> None:
    """It reads no record of the store, and no row of another project."""
    uploaded(front)
    shutil.rmtree(Path(front.settings.images_folder))
    answer = front.get(IMAGES, OTHER_TENANT)
    assert (answer.status_code, answer.json["images"]) == (200, [])
    assert front.database.read(images.list_part, ImageQuery(project_id="p2", order=(("id", False),), limit=10)) == ([], None)


def tagged(front: Front, image_id: str, tag: str, method: str = "PUT", headers: dict[str, str] = TENANT) -> int:
    return front.client.simulate_request(method, f"{IMAGES}/{image_id}/tags/{tag}", headers=headers).status_code


def test_an_image_has_tags(front: Front, store: FolderStore) -> None:
    image_id = created(front, tags=["b", "a", "b"])["id"]
    assert (seen(front, image_id) or {})["tags"] == ["a", "b"]
    assert tagged(front, image_id, "c") == 409, "it is not active yet"
    assert upload(front, image_id).status_code == 204
    assert [tagged(front, image_id, tag) for tag in ("c", "c", "%F0%9F%8C%8D")] == [204] * 3
    assert tagged(front, image_id, "b", "DELETE") == 204
    assert tagged(front, image_id, "b", "DELETE") == 404
    assert (seen(front, image_id) or {})["tags"] == ["a", "c", "\U0001f30d"]
    assert store.get_record(image_id).tags == ("a", "c", "\U0001f30d")
    assert change(front, image_id, {"op": "replace", "path": "/tags", "value": ["x", "c", "x"]}).json["tags"] == ["c", "x"]
    assert change(front, image_id, {"op": "replace", "path": "/name", "value": "new"}).json["tags"] == ["c", "x"]


def test_tags_require_the_right_to_change_the_image(front: Front, store: FolderStore) -> None:
    image_id = uploaded(front)
    of_operator = store.add_image([CONTENT], name="debian", image_id="70a599e0-31e7-49b7-b260-868f441e8001")
    front.database.write(images.add_images, [of_operator.to_stored()])
    for method in ("PUT", "DELETE"):
        assert tagged(front, image_id, "a", method, OTHER_TENANT) == 404
        assert tagged(front, image_id, "a", method, READER) == 403
        assert tagged(front, of_operator.id, "a", method) == 403
        assert tagged(front, "no-such", "a", method) == 404
    assert (seen(front, image_id) or {})["tags"] == []


def test_tags_have_the_limits_of_the_image_api(front: Front) -> None:
    image_id = uploaded(front, tags=[f"{number}" for number in range(127)])
    assert tagged(front, image_id, "x" * 256) == 400
    assert tagged(front, image_id, "a%00b") == 400
    assert tagged(front, image_id, "x" * 255) == 204
    assert tagged(front, image_id, "more") == 403
    assert tagged(front, image_id, "1") == 204, "it has this one"
    assert front.client.simulate_post(IMAGES, headers=TENANT, json={"tags": [f"{n}" for n in range(129)]}).status_code == 403


def test_images_are_found_by_tags(front: Front) -> None:
    both, one = uploaded(front, tags=["a", "b"]), created(front, tags=["a"])["id"]
    uploaded(front)

    def found(query: str) -> set[str]:
        return {image["id"] for image in front.get(f"{IMAGES}?{query}", TENANT).json["images"]}

    assert found("tag=a") == {both, one}
    assert found("tag=a&tag=b") == {both}
    assert found("tag=a&status=queued") == {one}
    assert found("tag=c") == found("tag=") == set()


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"op": "replace", "path": "/visibility", "value": "public"}, 400, "visibility"),
        ({"op": "replace", "path": "/disk_format", "value": "qcow2"}, 400, "disk_format"),
        ({"op": "add", "path": "/tags", "value": ["a", ""]}, 400, "tags"),
        ({"op": "add", "path": "/tags", "value": "a"}, 400, "tags"),
        ({"op": "add", "path": "/tags", "value": [str(number) for number in range(129)]}, 403, "128 tags"),
        ({"op": "add", "path": "/size", "value": 1}, 400, "size"),
        ({"op": "add", "path": "/number", "value": 1}, 400, "number"),
        ({"op": "replace", "path": "/min_ram", "value": -1}, 400, "min_ram"),
        ({"op": "replace", "path": "/no_such", "value": "a"}, 409, "does not exist"),
        ({"op": "remove", "path": "/name"}, 400, "cannot be removed"),
        ({"op": "move", "path": "/a", "from": "/b"}, 400, "JSON patch"),
        ({"op": "add", "path": "/a/b", "value": "c"}, 400, "JSON patch"),
        ("add", 400, "JSON patch"),
    ],
)
def test_a_json_patch_that_cannot_be_is_refused(front: Front, given: Any, status: int, words: str) -> None:
    image_id = uploaded(front, os_distro="debian")
    before = seen(front, image_id)
    answer = change(front, image_id, given)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert seen(front, image_id) == before


def test_only_members_of_the_project_change_an_image(front: Front) -> None:
    image_id = uploaded(front)
    rename = {"op": "replace", "path": "/name", "value": "other"}
    assert change(front, image_id, rename, headers=OTHER_TENANT).status_code == 404
    assert change(front, image_id, rename, headers=READER).status_code == 403
    assert change(front, created(front)["id"], rename).status_code == 409, "it has no content yet"
    assert front.client.simulate_patch(f"{IMAGES}/{image_id}", headers=TENANT, json=[rename]).status_code == 415


# -- what its content is, for the hosts that read it -----------------------------------------------------------------------------


def asked_image(front: Front, server: str) -> Image | None:
    batch = front.batch_of(server)
    return front.database.read(mappings.specs_by_batch, [batch])[batch].image


def test_a_boot_says_what_its_image_must_be(front: Front, store: FolderStore) -> None:
    """Whatever is in the store by then: hosts write there."""
    image_id = uploaded(front)
    digest = hashlib.sha512(CONTENT).hexdigest()
    store.delete(image_id)
    store.add_image([b"of a taken host"], name="mine", image_id=image_id)
    assert asked_image(front, front.boot("web", TENANT, imageRef=image_id)) == Image(id=image_id, hash_value=digest, disk_gb=1)


def test_a_boot_of_an_image_elsewhere_is_unchanged(front: Front) -> None:
    assert asked_image(front, front.boot("web", TENANT)) == Image(id=IMAGE)


@pytest.mark.parametrize(("action", "field"), [("rebuild", "imageRef"), ("rescue", "rescue_image_ref")])
def test_a_task_says_what_its_image_must_be(front: Front, store: FolderStore, action: str, field: str) -> None:
    image_id = uploaded(front)
    server = booted(front, imageRef=image_id)  # so no scheduler is asked whether its host may run it
    assert act(front, server, action, {field: image_id}).status_code in (200, 202)
    operation = front.database.read(operations.open_for, [server])[server]
    body = front.database.read(operations.bodies_by_uuid, [server])[server]
    digest = hashlib.sha512(CONTENT).hexdigest()
    assert operation.args.image_hash == digest
    opened = operations.OpenOperation(operation=operation, source=body, twin=None)
    assert task_of(opened, body, ()).args.image_hash == digest
    if action == "rebuild":  # and what moves the server later takes it from the same image
        write(front, server, task_number=operation.number, task_state="done")
        front.database.write(steps.finish_tasks, [operation.uuid], 1.0)
        now = front.database.read(operations.bodies_by_uuid, [server])[server].server
        batch = front.batch_of(server)
        spec = front.database.read(mappings.specs_by_batch, [batch])[batch]
        assert accepting.current_spec(spec, now).image == Image(id=image_id, hash_value=digest, disk_gb=1)


def test_a_deleted_image_has_no_hash(front: Front, store: FolderStore) -> None:
    image_id = uploaded(front)
    assert front.database.read(images.get, image_id) is not None
    assert front.client.simulate_delete(f"{IMAGES}/{image_id}", headers=TENANT).status_code == 204
    assert front.database.read(images.get, image_id) is None


def test_an_upload_that_was_killed_has_a_hash(front: Front, store: FolderStore) -> None:
    image = created(front)
    store.add_image([CONTENT], name="mine", image_id=image["id"], owner=image["owner"])  # and then the process was killed
    assert upload(front, image["id"], b"later").status_code == 409
    digest = hashlib.sha512(CONTENT).hexdigest()
    row = front.database.read(images.get, image["id"])
    assert row is not None
    assert (row.project_id, row.hash_value, row.size) == (image["owner"], digest, len(CONTENT))


def test_a_forged_record_gives_no_image_away(front: Front, store: FolderStore) -> None:
    """A taken host has made it one of the operator's in the store."""
    image_id = uploaded(front)
    record = store.get_record(image_id)
    store.delete(image_id)
    store.add_image([CONTENT], name=record.name, image_id=image_id, owner="")
    assert seen(front, image_id, OTHER_TENANT) is None
    assert front.get(f"{IMAGES}/{image_id}/file", OTHER_TENANT).status_code == 404
    body = {"server": {"name": "web", "flavorRef": "1", "imageRef": image_id}}
    assert front.post(body, TENANT).status_code == 202
    refused = front.post(body, OTHER_TENANT)
    assert (refused.status_code, f"image {image_id} could not be found" in refused.text) == (400, True)
