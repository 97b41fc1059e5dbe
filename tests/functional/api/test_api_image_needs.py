"""What is known of an image at every door that names one: properties for the filters, its disk, its state and its owner."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import falcon.testing
import msgspec
import pytest
import sqlalchemy as sa

from api.opts import ApiSettings
from db.api.operations import operations, steps
from db.api.projects import flavors
from db.api.rows.tables import instance_mappings, request_specs
from db.api.servers import mappings, server_images
from db.api.servers.server_images import UploadedImage
from images.store import FolderStore
from objects import stored
from objects.flavor import Flavor
from objects.move import Move, MoveKind
from objects.operation import OperationKind
from objects.quota import ImageLimits
from objects.spec import Image, RequestSpec
from objects.stored_image import ImageDetails
from objects.task import StoredContent, TaskState
from service.periodic import wait_until
from tests.support import fleet
from tests.support.api import CELL1_UUID, IMAGE, NEWEST, OTHER_TENANT, TENANT, Front
from tests.support.deciding import add_hosts, decide, scheduler_of
from tests.support.disk_images import qcow2

NEW = TENANT | NEWEST
ADMIN = TENANT | {"X-Roles": "admin"}
GIB = 1 << 30
FAST, SLOW = "10000000-0000-4000-8000-000000000001", "10000000-0000-4000-8000-000000000002"
"""Images that require a trait; h1 has the first one."""
HUGE = "10000000-0000-4000-8000-000000000003"
NO_DISK = Flavor(flavor_id="no-disk", name="no-disk", vcpus=1, memory_mb=256)
NUMA = "10000000-0000-4000-8000-000000000004"


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    """One host with the trait CUSTOM_FAST, and the images of this module."""
    made = Front(tmp_path, ApiSettings(images_folder=str(tmp_path / "images"), cell_timeout=2.0))
    made.database.write(flavors.create, NO_DISK)
    add_hosts(made, [fleet.node("h1", vcpus=16, memory_mb=65536, attributes={"traits": ["CUSTOM_FAST"]})])
    store = FolderStore(tmp_path / "images")
    for image_id, properties in (
        (FAST, {"trait:CUSTOM_FAST": "required"}),
        (SLOW, {"trait:CUSTOM_SLOW": "required"}),
        (NUMA, {"hw_numa_nodes": "7"}),
    ):
        store.add_image([b"x" * 512], name="image", image_id=image_id, disk_format="raw", properties=properties, min_ram=100)
    store.add_image([qcow2(virtual_size=30 << 40)], name="huge", image_id=HUGE)
    yield made
    made.close()


@pytest.fixture
def scheduled(front: Front) -> Iterator[Front]:
    with scheduler_of(front):
        yield front


def by_device(image_id: str) -> dict[str, Any]:
    device = {"uuid": image_id, "source_type": "image", "destination_type": "local", "boot_index": 0}
    return {"imageRef": "", "block_device_mapping_v2": [device]}


def spec_of(front: Front, server: str) -> RequestSpec:
    return front.database.read(mappings.specs_by_batch, [front.batch_of(server)])[front.batch_of(server)]


def ask(front: Front, fields: dict[str, Any], headers: dict[str, str] = TENANT, path: str = "servers") -> falcon.testing.Result:
    body = {"server": {"name": "web", "flavorRef": "1"} | fields}
    return front.client.simulate_post(f"/v2.1/{path}", headers=headers, json=body)


def act(front: Front, server: str, headers: dict[str, str] = NEW, **action: Any) -> falcon.testing.Result:
    return front.client.simulate_post(f"/v2.1/servers/{server}/action", headers=headers, json=action)


def built(front: Front, **fields: Any) -> str:
    """A server that a scheduler has placed on h1."""
    server = front.boot("web", ADMIN, **fields)
    assert decide(front) == ["h1"]
    front.database.write(lambda tx: tx.execute(sa.text("UPDATE build_requests SET lease_until = 0")))
    front.bring_up(server)
    return server


def rebuild(front: Front, server: str, image_id: str) -> None:
    """Accept a rebuild, and let its host carry it out."""
    assert act(front, server, rebuild={"imageRef": image_id}).status_code == 202
    [operation] = front.database.read(operations.open_for, [server]).values()
    values = {"task_number": operation.number, "task_state": TaskState.DONE}
    told = sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == operation.source_uuid).values(values)
    front.database.write(lambda tx: tx.execute(told))
    assert front.database.write(steps.finish_tasks, [operation.uuid], time.time()).operations


@pytest.mark.parametrize("fields", [{"imageRef": FAST}, by_device(FAST)])
def test_properties_reach_the_request_by_each_field(front: Front, fields: dict[str, Any]) -> None:
    server = front.boot("web", TENANT, **fields)
    assert spec_of(front, server).image == Image(id=FAST, properties={"trait:CUSTOM_FAST": "required"}, disk_gb=1, min_ram=100)


@pytest.mark.parametrize(("image_id", "outcome"), [(FAST, "placed"), (SLOW, "refused")])
def test_filters_judge_properties_of_images(scheduled: Front, image_id: str, outcome: str) -> None:
    for fields in ({"imageRef": image_id}, by_device(image_id)):
        answer = ask(scheduled, fields, ADMIN, "superconductor/dry-run")
        assert answer.json["dry_run"]["outcome"] == outcome, answer.text


def test_an_image_that_forbids_traits_is_refused(front: Front) -> None:
    FolderStore(front.settings.images_folder).change_record(
        FAST, "image", ImageDetails(properties={"trait:CUSTOM_FAST": "forbidden"})
    )
    answer = ask(front, {"imageRef": FAST})
    assert (answer.status_code, "trait:CUSTOM_FAST" in answer.text) == (400, True)


def test_an_image_that_divides_no_server_is_refused(front: Front) -> None:
    answer = ask(front, {"imageRef": NUMA})
    assert (answer.status_code, "7" in answer.text) == (400, True), answer.text


def test_properties_of_an_image_are_bounded(front: Front) -> None:
    FolderStore(front.settings.images_folder).change_record(
        FAST, "image", ImageDetails(properties={f"p{number}": "x" * 1000 for number in range(70)})
    )
    assert ask(front, {"imageRef": FAST}).status_code == 400


def test_a_rebuild_asks_the_filters_for_its_host(scheduled: Front) -> None:
    server = built(scheduled)
    refused = act(scheduled, server, rebuild={"imageRef": SLOW})
    assert (refused.status_code, "No valid host was found" in refused.text) == (400, True), refused.text
    assert act(scheduled, server, rebuild={"imageRef": NUMA}).status_code == 400
    rebuild(scheduled, server, FAST)


def test_a_moved_server_is_rebuilt(scheduled: Front) -> None:
    """Its body was made by a request for a move."""
    server = built(scheduled)
    spec = spec_of(scheduled, server)
    move = Move(kind=MoveKind.MIGRATE, instance_uuid=str(uuid4()), source_host="h9", source_cell_uuid=CELL1_UUID)
    moved = stored.dump_value(msgspec.structs.replace(spec, move=move))
    statement = sa.update(request_specs).where(request_specs.c.batch_id == spec.batch_id).values(spec=moved)
    scheduled.database.write(lambda tx: tx.execute(statement))
    rebuild(scheduled, server, FAST)


def test_a_full_host_rebuilds_its_server(scheduled: Front) -> None:
    """The claim stays as it is, so no filter of amounts is asked."""
    whole = Flavor(flavor_id="whole", name="whole", vcpus=16, memory_mb=1024, root_gb=1)
    scheduled.database.write(flavors.create, whole)
    server = built(scheduled, flavorRef="whole")
    assert act(scheduled, server, rebuild={"imageRef": FAST}).status_code == 202


def test_a_rescue_asks_the_filters_for_its_host(scheduled: Front) -> None:
    server = built(scheduled)
    refused = act(scheduled, server, rescue={"rescue_image_ref": SLOW})
    assert (refused.status_code, "No valid host was found" in refused.text) == (400, True), refused.text
    assert act(scheduled, server, rescue={"rescue_image_ref": FAST}).status_code == 200


@pytest.mark.parametrize("action", [{"rebuild": {"imageRef": FAST}}, {"rescue": {"rescue_image_ref": FAST}}])
def test_without_a_scheduler_no_image_is_changed(front: Front, action: dict[str, Any]) -> None:
    with scheduler_of(front):
        server = built(front)
    assert act(front, server, **action).status_code == 503
    assert front.database.read(operations.open_for, [server]) == {}
    assert act(front, server, rebuild={"imageRef": IMAGE}).status_code == 202  # its own image


def test_a_move_takes_properties_of_the_last_rebuild(scheduled: Front) -> None:
    server = built(scheduled)
    rebuild(scheduled, server, FAST)
    assert act(scheduled, server, ADMIN | NEWEST, migrate=None).status_code == 202
    [operation] = scheduled.database.read(operations.open_for, [server]).values()
    [twin] = scheduled.database.read(mappings.of_bodies, [operation.twin_uuid or ""])
    [spec] = scheduled.database.read(mappings.specs_by_batch, [twin.batch_id]).values()
    assert spec.image == Image(id=FAST, properties={"trait:CUSTOM_FAST": "required"}, disk_gb=1, min_ram=100)


def test_an_image_is_judged_again_with_new_properties(scheduled: Front) -> None:
    """Its ID may be that of another image by now."""
    server = built(scheduled, imageRef=FAST)
    FolderStore(scheduled.settings.images_folder).change_record(
        FAST, "image", ImageDetails(properties={"trait:CUSTOM_SLOW": "required"})
    )
    assert act(scheduled, server, rebuild={"imageRef": FAST}).status_code == 400


def row(front: Front, image_id: str, project_id: str, *, complete: bool) -> None:
    asked = UploadedImage(name="x", owner=project_id)
    front.database.write(server_images.add_upload, image_id, asked, ImageLimits(), 1.0)
    if complete:
        content = StoredContent(size=512, hash_value=hashlib.sha512(b"x" * 512).hexdigest())
        image = front.database.read(server_images.get, image_id, project_id)
        assert image is not None
        front.database.write(server_images.complete_upload, image, content, 2.0)


@pytest.mark.parametrize("door", ["boot", "device", "rebuild", "rescue"])
@pytest.mark.parametrize("case", ["queued", "other project", "deleted", "shelved", "without content"])
def test_an_image_that_is_not_active_is_refused(scheduled: Front, door: str, case: str) -> None:
    image_id = "20000000-0000-4000-8000-000000000001"
    store = FolderStore(scheduled.settings.images_folder)
    server = built(scheduled) if door in ("rebuild", "rescue") else ""
    match case:
        case "queued":
            row(scheduled, image_id, "p1", complete=False)
        case "other project":
            store.add_image([b"x" * 512], name="x", image_id=image_id, disk_format="raw", owner="p2")
            row(scheduled, image_id, "p2", complete=True)
        case "deleted":
            store.add_image([b"x" * 512], name="x", image_id=image_id, disk_format="raw", owner="p1")
        case "shelved":
            store.save_snapshot(image_id, b"disk")
        case _:
            row(scheduled, image_id, "p1", complete=True)
    asked = {
        "boot": lambda: ask(scheduled, {"imageRef": image_id}),
        "device": lambda: ask(scheduled, by_device(image_id)),
        "rebuild": lambda: act(scheduled, server, rebuild={"imageRef": image_id}),
        "rescue": lambda: act(scheduled, server, rescue={"rescue_image_ref": image_id}),
    }
    answer = asked[door]()
    assert (answer.status_code, image_id in answer.text) == (400, True), answer.text


def test_an_administrator_rebuilds_from_the_projects_images(scheduled: Front) -> None:
    store, image_id = FolderStore(scheduled.settings.images_folder), "20000000-0000-4000-8000-000000000002"
    store.add_image([b"x" * 512], name="x", image_id=image_id, disk_format="raw", owner="p1")
    row(scheduled, image_id, "p1", complete=True)
    server = built(scheduled)
    other = OTHER_TENANT | NEWEST | {"X-Roles": "admin"}
    assert act(scheduled, server, other, rebuild={"imageRef": image_id}).status_code == 202


def test_a_flavor_without_a_disk_is_for_administrators(front: Front) -> None:
    assert ask(front, {"imageRef": FAST, "flavorRef": "no-disk"}).status_code == 403
    server = front.boot("web", ADMIN, imageRef=FAST, flavorRef="no-disk")
    assert spec_of(front, server).taken_amounts.disk_gb == 1


def test_an_image_of_unknown_size_needs_a_disk(front: Front) -> None:
    """It may be one of Glance's, whose disk is as large as nobody here knows."""
    assert ask(front, {"imageRef": IMAGE}).status_code == 202
    refused = ask(front, {"imageRef": IMAGE, "flavorRef": "no-disk"})
    assert (refused.status_code, "root disk is 0 GiB" in refused.text) == (403, True)
    assert ask(front, {"imageRef": IMAGE, "flavorRef": "no-disk"}, ADMIN).status_code == 202


@pytest.mark.parametrize("door", ["rebuild", "rescue"])
def test_no_later_disk_is_of_unknown_size(scheduled: Front, door: str) -> None:
    server = built(scheduled, imageRef=FAST, flavorRef="no-disk")
    unknown = {"rebuild": {"imageRef": IMAGE}, "rescue": {"rescue_image_ref": IMAGE}}[door]
    answer = act(scheduled, server, NEW, **{door: unknown})
    assert (answer.status_code, "root disk is 0 GiB" in answer.text) == (403, True), answer.text


def test_the_disk_of_an_image_is_claimed(scheduled: Front) -> None:
    answer = ask(scheduled, {"imageRef": HUGE, "flavorRef": "no-disk"}, ADMIN, "superconductor/dry-run")
    assert answer.json["dry_run"]["outcome"] == "refused", answer.text


@pytest.mark.parametrize("action", [{"rebuild": {"imageRef": HUGE}}, {"rescue": {"rescue_image_ref": HUGE}}])
def test_no_later_disk_is_larger_than_the_claim(scheduled: Front, action: dict[str, Any]) -> None:
    server = built(scheduled, imageRef=FAST, flavorRef="no-disk")
    answer = act(scheduled, server, ADMIN | NEWEST, **action)
    assert (answer.status_code, "30720 GiB" in answer.text) == (400, True), answer.text


def test_a_resize_keeps_what_the_image_needs(scheduled: Front) -> None:
    for name, changes in (("little", {"memory_mb": 99}), ("diskless", {"root_gb": 0})):
        made = Flavor(flavor_id=name, name=name, vcpus=1, memory_mb=512, root_gb=20)
        scheduled.database.write(flavors.create, msgspec.structs.replace(made, **changes))
    server = built(scheduled, imageRef=FAST)
    for name in ("little", "diskless"):
        assert act(scheduled, server, resize={"flavorRef": name}).status_code == 400


def test_a_flavor_made_again_is_another_one(scheduled: Front) -> None:
    made = {"id": "again", "name": "again", "vcpus": 1, "ram": 512, "disk": 20}

    def create(**changes: int) -> None:
        answer = scheduled.client.simulate_post("/v2.1/flavors", headers=ADMIN, json={"flavor": made | changes})
        assert answer.status_code == 200, answer.text

    create()
    server = built(scheduled, flavorRef="again")
    assert "has this flavor already" in act(scheduled, server, resize={"flavorRef": "again"}).text
    assert scheduled.client.simulate_delete("/v2.1/flavors/again", headers=ADMIN).status_code == 202
    create(vcpus=2)
    # the old one is cached for a while
    assert wait_until(lambda: act(scheduled, server, resize={"flavorRef": "again"}).status_code == 202, 90.0, pause=0.1)
    [operation] = scheduled.database.read(operations.open_for, [server]).values()
    assert (operation.kind, operation.vcpus) == (OperationKind.RESIZE, 2)


def test_only_the_first_disk_has_an_image(front: Front) -> None:
    second = {"uuid": IMAGE, "source_type": "image", "destination_type": "local", "boot_index": -1}
    answer = ask(front, {"imageRef": IMAGE, "block_device_mapping_v2": [second]})
    assert (answer.status_code, "[0].boot_index" in answer.text) == (400, True), answer.text


def test_an_image_of_a_server_keeps_its_properties(scheduled: Front) -> None:
    """Also if the image that the server was built from is gone."""
    server = built(scheduled, imageRef=FAST)
    FolderStore(scheduled.settings.images_folder).delete(FAST)
    assert act(scheduled, server, createImage={"name": "copy", "metadata": {"a": "b"}}).status_code == 202
    [made] = scheduled.database.read(server_images.list_incomplete, "p1")
    properties = made.asked.properties
    assert (properties["trait:CUSTOM_FAST"], properties["base_image_ref"], properties["a"]) == ("required", FAST, "b")
