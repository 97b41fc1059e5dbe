"""Images of servers over HTTP: what is asked of a host, what users see of an image until it is complete, and who may delete it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import falcon.testing
import jsonschema
import pytest

from api.opts import ApiSettings
from db.api.operations import operations, steps
from db.api.servers import image_removals, images
from images.store import FolderStore
from objects.operation import Operation, OperationKind
from tests.functional.api.test_api_operations import ADMIN, NEW, act, at, booted, saved, shown, write
from tests.support.api import IMAGE, OTHER_TENANT, TENANT, Front, refusal
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL

NEXT = NEW | at("2.45")
BEFORE = NEW | at("2.44")
BACKUP = {"name": "b", "backup_type": "daily", "rotation": 2}
ADDED = "11111111-1111-4111-8111-111111111111"


front = front_fixture(grounds=USUAL, images=True)


@pytest.fixture
def store(front: Front, tmp_path: Path) -> FolderStore:
    made = FolderStore(tmp_path / "images")
    (tmp_path / "disk").write_bytes(b"disk")
    front.database.write(images.add_images, [made.add_image(tmp_path / "disk", name="added", image_id=ADDED).to_stored()])
    return made


@pytest.fixture
def server(front: Front, store: FolderStore) -> str:
    """A server that is ACTIVE on host h1."""
    return booted(front)


def the_operation(front: Front, server: str) -> Operation:
    return front.database.read(operations.open_for, [server])[server]


def written(front: Front, server: str, store: FolderStore, file: Path) -> str:
    """The host has made the image, its cell has told, and a sweep has read it."""
    operation = the_operation(front, server)
    asked = operation.args.image
    assert asked is not None
    store.add_image(
        file,
        name=asked.name,
        image_id=operation.uuid,
        owner=asked.owner,
        min_disk=asked.min_disk,
        min_ram=asked.min_ram,
        properties=asked.properties,
    )
    write(front, server, task_number=operation.number, task_state="done")
    front.database.write(steps.finish_tasks, [operation.uuid], 1.0)
    return operation.uuid


def image(front: Front, image_id: str, headers: dict[str, str] = TENANT) -> falcon.testing.Result:
    return front.get(f"/image/v2/images/{image_id}", headers)


def names(front: Front, query: str = "", headers: dict[str, str] = TENANT) -> list[str]:
    answer = front.get(f"/image/v2/images{query}", headers)
    assert answer.status_code == 200, answer.json
    return sorted(each["name"] for each in answer.json["images"])


def test_an_image_is_shown_before_it_is_complete(front: Front, server: str, store: FolderStore, tmp_path: Path) -> None:
    asked = {"name": "snap", "metadata": {"release": "7"}}
    answer = act(front, server, "createImage", asked, NEXT)
    assert (answer.status_code, list(answer.json)) == (202, ["image_id"])
    image_id = answer.json["image_id"]
    found = shown(front, server)
    assert (found["status"], found["OS-EXT-STS:task_state"]) == ("ACTIVE", "image_snapshot")
    assert "while its create-image is in state task" in refusal(act(front, server, "createImage", asked), 409)
    being_made = image(front, image_id).json
    assert (being_made["status"], being_made["size"], being_made["visibility"]) == ("saving", None, "private")
    assert names(front, "?status=saving&sort=size:asc,disk_format:desc") == ["snap"]

    assert written(front, server, store, tmp_path / "disk") == image_id
    made = image(front, image_id).json
    assert (made["status"], made["size"], made["min_disk"], made["owner"]) == ("active", 4, 20, found["tenant_id"])
    expected = {"base_image_ref": IMAGE, "instance_uuid": server, "image_type": "snapshot", "release": "7"}
    assert {name: made[name] for name in expected} == expected
    assert shown(front, server)["OS-EXT-STS:task_state"] is None
    assert names(front) == ["added", "snap"]
    assert names(front, "?visibility=private") == ["snap"]
    assert names(front, "?visibility=public&sort=size") == ["added"]
    action = front.get(f"/v2.1/servers/{server}/os-instance-actions", NEW).json["instanceActions"][0]
    assert (action["action"], action["message"]) == ("createImage", None)
    path = f"/v2.1/servers/{server}/os-instance-actions/{action['request_id']}"
    [event] = front.get(path, NEW).json["instanceAction"]["events"]
    assert (event["event"], event["result"]) == ("compute_snapshot_instance", "Success")


def test_only_its_project_sees_and_deletes_an_image(front: Front, server: str, store: FolderStore, tmp_path: Path) -> None:
    act(front, server, "createImage", {"name": "snap"})
    image_id = written(front, server, store, tmp_path / "disk")
    delete = front.client.simulate_delete
    path = f"/image/v2/images/{image_id}"
    assert names(front, headers=OTHER_TENANT) == ["added"]
    assert image(front, image_id, OTHER_TENANT).status_code == 404
    assert delete(path, headers=OTHER_TENANT).status_code == 404
    assert delete(path, headers=NEW | {"X-Roles": "reader"}).status_code == 403
    assert names(front, headers=ADMIN) == ["added", "snap"]
    refused = delete(f"/image/v2/images/{ADDED}", headers=TENANT)
    assert (refused.status_code, "superconductor image delete" in str(refused.json)) == (403, True)
    assert delete("/image/v2/images/none", headers=TENANT).status_code == 404
    assert delete(path, headers=TENANT).status_code == 204
    assert delete(path, headers=TENANT).status_code == 404
    assert (image(front, image_id).status_code, names(front)) == (404, ["added"])
    assert front.database.read(image_removals.list_due, 10) == [image_id]


def test_a_header_names_the_image_before_2_45(front: Front, server: str) -> None:
    answer = act(front, server, "createImage", {"name": "snap"}, BEFORE)
    operation = the_operation(front, server)
    assert (answer.status_code, answer.text) == (202, "")
    assert answer.headers["location"].endswith(f"/image/v2/images/{operation.uuid}")
    assert answer.headers["x-compute-request-id"] == operation.request_id


def test_a_backup(front: Front, server: str, store: FolderStore, tmp_path: Path) -> None:
    image_id = act(front, server, "createBackup", BACKUP, NEXT).json["image_id"]
    assert shown(front, server)["OS-EXT-STS:task_state"] == "image_backup"
    assert the_operation(front, server).kind is OperationKind.CREATE_BACKUP
    written(front, server, store, tmp_path / "disk")
    made = image(front, image_id).json
    assert (made["image_type"], made["backup_type"]) == ("backup", "daily")
    none = act(front, server, "createBackup", BACKUP | {"rotation": "0"}, BEFORE)
    assert (none.status_code, "location" in none.headers) == (202, False)
    gone = written(front, server, store, tmp_path / "disk")
    assert (image(front, gone).status_code, image(front, image_id).status_code) == (404, 404)


def test_a_backup_of_an_empty_type_spares_images(front: Front, server: str, store: FolderStore, tmp_path: Path) -> None:
    act(front, server, "createImage", {"name": "snap"}, NEXT)
    snap = written(front, server, store, tmp_path / "disk")
    for _ in range(2):
        act(front, server, "createBackup", BACKUP | {"backup_type": "", "rotation": 1}, NEXT)
        latest = written(front, server, store, tmp_path / "disk")
    assert image(front, latest).json["backup_type"] == "backup"
    assert image(front, snap).status_code == 200
    assert names(front) == ["added", "b", "snap"], "and one backup"


@pytest.mark.parametrize(
    ("action", "value"),
    [
        ("createImage", {}),
        ("createImage", {"name": ""}),
        ("createImage", {"name": "x", "metadata": {"a": 1}}),
        ("createImage", {"name": "x", "rotation": 1}),
        ("createBackup", {"name": "x", "backup_type": "daily"}),
        ("createBackup", BACKUP | {"rotation": -1}),
        ("createBackup", BACKUP | {"rotation": "x"}),
        ("createBackup", BACKUP | {"backup_type": 7}),
    ],
)
def test_a_wrong_value_is_refused(front: Front, server: str, action: str, value: dict[str, Any]) -> None:
    assert act(front, server, action, value).status_code == 400
    assert front.database.read(operations.open_for, [server]) == {}


def test_metadata_has_a_quota_up_to_2_38(front: Front, server: str) -> None:
    asked = {"name": "snap", "metadata": {f"key{number}": "x" for number in range(129)}}
    assert act(front, server, "createImage", asked, NEW | at("2.38")).status_code == 403
    assert act(front, server, "createImage", asked, NEW | at("2.39")).status_code == 202


def test_locked_servers_make_images_and_shelved_ones_refuse(front: Front, server: str) -> None:
    act(front, server, "lock", None, ADMIN)
    assert act(front, server, "createImage", {"name": "snap"}).status_code == 202
    other = booted(front)
    write(front, other, power="held", task_number=4, task_state="done")
    assert "while it is in vm_state" in refusal(act(front, other, "createImage", {"name": "snap"}), 409)
    assert act(front, "11111111-1111-4111-8111-111111111111", "createImage", {"name": "snap"}).status_code == 404


def test_a_shelved_servers_snapshot_is_an_image(front: Front, server: str, store: FolderStore) -> None:
    assert act(front, server, "shelve").status_code == 202
    snapshot = the_operation(front, server).uuid
    assert names(front) == ["added"]
    store.save_snapshot(snapshot, b"its disk")
    saved(front, server)
    for offloaded in (False, True):
        if offloaded:
            assert act(front, server, "shelveOffload", None, ADMIN).status_code == 202
        assert names(front, "?name=web-shelved") == ["web-shelved"]
        assert names(front, headers=OTHER_TENANT) == ["added"]
        found = image(front, snapshot).json
        jsonschema.validate(found, front.get("/image/v2/schemas/image", TENANT).json)
        assert (found["status"], found["size"], found["protected"], found["visibility"]) == ("active", 8, True, "private")
        assert (found["instance_uuid"], found["base_image_ref"], found["owner"]) == (server, IMAGE, "p1")
        assert image(front, snapshot, OTHER_TENANT).status_code == 404
        [listed] = front.get("/v2.1/images", TENANT, server=server).json["images"]
        assert listed["id"] == snapshot
        deleted = front.client.simulate_delete(f"/image/v2/images/{snapshot}", headers=TENANT)
        assert "is the disk of the shelved server" in refusal(deleted, 403)
        item = {"meta": {"a": "b"}}
        changed = front.client.simulate_put(f"/v2.1/images/{snapshot}/metadata/a", headers=TENANT, json=item)
        assert "is the disk of the shelved server" in refusal(changed, 403)
    assert front.client.simulate_delete(f"/v2.1/servers/{server}", headers=TENANT).status_code == 204
    assert names(front) == ["added"]
    assert image(front, snapshot).status_code == 404


def test_a_started_servers_snapshot_is_no_image(front: Front, server: str, store: FolderStore) -> None:
    assert act(front, server, "shelve").status_code == 202
    saved(front, server)
    assert names(front) == ["added", "web-shelved"]
    assert act(front, server, "unshelve").status_code == 202
    assert names(front) == ["added"]


def test_without_an_image_store_there_are_no_images(tmp_path: Path) -> None:
    bare = Front(tmp_path)
    server = booted(bare)
    assert "no image store is configured: set [images] folder" in refusal(act(bare, server, "createImage", {"name": "x"}), 409)
    assert bare.database.read(operations.open_for, [server]) == {}
    bare.close()


def test_image_of_a_server_counts_against_the_quota(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    front = Front(tmp_path, ApiSettings(images_folder=str(tmp_path / "images"), images=0))
    server = booted(front)
    for action, value in (
        ("createImage", {"name": "snap"}),
        ("createBackup", {"name": "daily", "backup_type": "daily", "rotation": 1}),
    ):
        assert "Quota exceeded for images: the project has 0 of 0" in refusal(act(front, server, action, value), 403)
    assert front.database.read(operations.of_server, server) == []
    front.close()
