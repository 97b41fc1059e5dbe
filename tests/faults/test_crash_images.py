"""An agent dies while it makes an image, or is late; a server is deleted meanwhile: no image is listed that is not complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.api.servers import images
from db.api.servers.images import ImageQuery
from images.store import FolderStore
from objects import errors
from objects.operation import Operation, OperationArgs, OperationKind, Outcome
from objects.task import NewImage, Power
from service.periodic import wait_until
from tests.faults.test_crash_operations import cloud, ended, expire, finish_conducted, kill_agent, rests, uuid
from tests.support.world import PATIENCE, World

__all__ = ["cloud", "uuid"]  # fixtures

ASKED = OperationArgs(image=NewImage(name="one", owner="p", backup_type="daily", rotation=1))


def ask(cloud: World, uuid: str) -> Operation:
    return cloud.operate(uuid, OperationKind.CREATE_BACKUP, args=ASKED)


def store(cloud: World) -> FolderStore:
    made = FolderStore(cloud.images)
    made.save_snapshot("any", b"")  # so that there is a folder
    return made


def listed(cloud: World) -> list[str]:
    """What users see. Each must be complete in the store."""
    query = ImageQuery(project_id=None, order=(("id", False),), limit=100)
    found = [image.image_id for image in cloud.api.read(images.list_part, query).images]
    for image_id in found:
        assert b"".join(store(cloud).read_content(image_id))
    return found


def nothing_is_left(cloud: World, but: list[str]) -> None:
    assert wait_until(lambda: [record.id for record in store(cloud).list_images()] == sorted(but), PATIENCE)
    assert wait_until(lambda: not list((Path(cloud.images) / "added").glob("*.part")), PATIENCE)


def test_the_conductor_dies_and_another_one_finishes(cloud: World, uuid: str) -> None:
    operation = ask(cloud, uuid)
    first = cloud.conductor("dies")
    first.operator.advance_operations([operation.uuid])
    assert listed(cloud) == []
    assert finish_conducted(cloud, operation) is Outcome.DONE
    first.operator.run_round()
    assert listed(cloud) == [operation.uuid]
    rests(cloud, uuid, {"a1"}, copied=False)
    nothing_is_left(cloud, [operation.uuid])


@pytest.mark.parametrize("written", [True, False])
def test_the_agent_is_killed_while_making_an_image(cloud: World, uuid: str, written: bool) -> None:
    """``written``: the image was complete, and nobody heard of it."""
    driver = cloud.agents["cell1"].block_driver("a1")
    cloud.start_conductor()
    operation = ask(cloud, uuid)
    assert wait_until(lambda: driver.tasks == [("image", "soft")], PATIENCE)
    kill_agent(cloud, "a1")
    if written:
        file = Path(cloud.images) / "disk"
        store(cloud)
        file.write_bytes(b"complete")
        store(cloud).add_image(file, name="one", image_id=operation.uuid, owner="p")
        file.unlink()
    assert listed(cloud) == []
    cloud.start_agent("a1")
    assert ended(cloud, operation).outcome is Outcome.DONE
    assert listed(cloud) == [operation.uuid]
    rests(cloud, uuid, {"a1"}, copied=False)
    nothing_is_left(cloud, [operation.uuid])


def test_a_failing_host_leaves_the_server_unchanged(cloud: World, uuid: str) -> None:
    cloud.agents["cell1"].drivers["a1"].task_errors = 1
    operation = ask(cloud, uuid)
    cloud.start_conductor()
    found = ended(cloud, operation)
    assert (found.outcome, found.fault) == (Outcome.GIVEN_UP, "the guest does not react")
    rests(cloud, uuid, {"a1"}, copied=False)
    assert listed(cloud) == []
    nothing_is_left(cloud, [])


def test_an_image_is_abandoned_while_its_host_works(cloud: World, uuid: str) -> None:
    driver = cloud.agents["cell1"].block_driver("a1")
    operation = ask(cloud, uuid)
    cloud.start_conductor()
    assert wait_until(lambda: driver.tasks == [("image", "soft")], PATIENCE)
    cloud.api.write(expire, operation.uuid)
    assert ended(cloud, operation).outcome is Outcome.GIVEN_UP
    driver.gate.set()
    rests(cloud, uuid, {"a1"}, copied=False)
    assert listed(cloud) == []
    nothing_is_left(cloud, [])


def test_the_server_is_deleted_meanwhile(cloud: World, uuid: str) -> None:
    driver = cloud.agents["cell1"].block_driver("a1")
    operation = ask(cloud, uuid)
    cloud.start_conductor()
    assert wait_until(lambda: driver.tasks == [("image", "soft")], PATIENCE)
    assert cloud.delete(uuid) is not None
    driver.gate.set()
    evidence = cloud.settle()
    assert (cloud.ended(operation).outcome, evidence.claims, listed(cloud)) == (Outcome.DELETED, {}, [])
    nothing_is_left(cloud, [])


def test_two_backups_and_the_older_one_is_removed(cloud: World, uuid: str) -> None:
    cloud.start_conductor()
    first = ask(cloud, uuid)
    with pytest.raises(errors.Conflict, match="create-backup is in state task"):
        ask(cloud, uuid)
    ended(cloud, first)
    second = ask(cloud, uuid)
    assert ended(cloud, second).outcome is Outcome.DONE
    assert listed(cloud) == [second.uuid]
    nothing_is_left(cloud, [second.uuid])
    rests(cloud, uuid, {"a1"}, Power.ON, copied=False)
