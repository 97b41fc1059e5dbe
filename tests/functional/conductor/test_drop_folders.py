"""Hosts that only read the image store: what they make is moved there, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from conductor.tidy import remove_images
from db.api.servers import image_removals, images
from images.drop import DropFolders
from images.store import FolderStore
from objects import errors
from objects.operation import Operation, OperationArgs, OperationKind, Outcome
from objects.task import NewImage
from service.periodic import wait_until
from tests.support.disk_images import qcow2
from tests.support.move_drive import boot, server
from tests.support.world import PATIENCE, World, world

IMAGE = NewImage(name="mine", owner="p", properties={"key": "value"})


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[World]:
    """Whoever writes into the store's folder but the super conductor would make another one there."""
    with world(tmp_path, {"cell1": ["a1", "a2"]}, "lite") as made:
        made.quick = msgspec.structs.replace(made.quick, images_drop_folder=str(drop_of(made)))
        made.start_cells()
        for host in made.homes:
            made.start_agent(host, images_drop=str(drop_of(made) / host))
        yield made


def drop_of(cloud: World) -> Path:
    return cloud.images.with_name("drop")


def make_image(cloud: World, uuid: str) -> Operation:
    return cloud.operate(uuid, OperationKind.CREATE_IMAGE, args=OperationArgs(image=IMAGE))


def dropped(cloud: World) -> list[str]:
    return sorted(str(path.relative_to(drop_of(cloud))) for path in drop_of(cloud).rglob("*") if not path.is_dir())


def test_what_hosts_make_is_moved_to_the_store(cloud: World) -> None:
    uuid = boot(cloud)
    cloud.start_conductor()
    operation = cloud.ended(make_image(cloud, uuid))
    assert operation.outcome is Outcome.DONE
    record = FolderStore(cloud.images).get_record(operation.uuid)
    assert (record.name, record.owner, record.properties) == ("mine", "p", {"key": "value"})
    row = cloud.api.read(images.get, operation.uuid)
    assert row is not None
    assert (row.project_id, row.hash_value, row.details) == ("p", record.hash_value, record.image_details)
    assert b"".join(FolderStore(cloud.images).read_content(operation.uuid))

    assert cloud.ended(cloud.operate(uuid, OperationKind.SHELVE)).outcome is Outcome.DONE
    assert wait_until(lambda: server(cloud, uuid).state == "shelved", PATIENCE)
    assert dropped(cloud) == []
    assert cloud.ended(cloud.operate(uuid, OperationKind.UNSHELVE)).outcome is Outcome.DONE
    assert server(cloud, uuid).state == "active"


def test_an_operation_waits_for_the_store(cloud: World) -> None:
    uuid = boot(cloud)
    cloud.images.write_text("no folder")
    cloud.start_conductor()
    operation = make_image(cloud, uuid)
    assert wait_until(lambda: f"a1/added/{operation.uuid}/content" in dropped(cloud), PATIENCE)
    cloud.images.unlink()
    assert cloud.ended(operation).outcome is Outcome.DONE
    assert FolderStore(cloud.images).get_record(operation.uuid).name == "mine"


class TestTakenHost:
    """It has put something else into its drop folder."""

    ID = "11111111-1111-4111-8111-111111111111"

    @pytest.fixture
    def store(self, tmp_path: Path) -> FolderStore:
        made = FolderStore(tmp_path / "store")
        made.add_image([b"of the operator"], name="public", image_id="22222222-2222-4222-8222-222222222222")
        return made

    @pytest.fixture
    def drop(self, tmp_path: Path, store: FolderStore) -> DropFolders:
        (tmp_path / "drop" / "a1").mkdir(parents=True)
        (tmp_path / "secret").write_text("of the super conductor")
        return DropFolders(tmp_path / "drop", store)

    def test_its_record_does_not_count(self, tmp_path: Path, store: FolderStore, drop: DropFolders) -> None:
        theirs = FolderStore(tmp_path / "drop" / "a1")
        theirs.add_image(
            [b"content"], name="debian", image_id=self.ID, owner="", properties={"key": "theirs", "hw": "x"}, min_disk=9
        )
        drop.take_from_host("a1", self.ID, IMAGE, None)
        record = store.get_record(self.ID)
        assert (record.id, record.name, record.owner, record.min_disk) == (self.ID, "mine", "p", 0)
        assert record.properties == {"key": "value", "hw": "x"}

    def test_other_names_are_left_there(self, tmp_path: Path, store: FolderStore, drop: DropFolders) -> None:
        before = store.list_images()
        theirs = FolderStore(tmp_path / "drop" / "a1")
        theirs.add_image([b"content"], name="debian", image_id=before[0].id)
        theirs.save_snapshot("another", b"snapshot")
        drop.take_from_host("a1", self.ID, IMAGE, None)
        drop.take_from_host("a1", self.ID, None, None)
        assert store.list_images() == before
        assert not store.has_snapshot("another")

    @pytest.mark.parametrize("kind", ["link", "folder", "second name"])
    @pytest.mark.parametrize("image", [None, IMAGE])
    def test_only_files_are_taken(
        self, tmp_path: Path, store: FolderStore, drop: DropFolders, kind: str, image: NewImage | None
    ) -> None:
        place = tmp_path / "drop" / "a1" / self.ID
        if image is not None:
            place = tmp_path / "drop" / "a1" / "added" / self.ID / "content"
            place.parent.mkdir(parents=True)
        if kind == "link":
            place.symlink_to(tmp_path / "secret")
        elif kind == "folder":
            place.mkdir()
        else:
            place.hardlink_to(tmp_path / "secret")
        with pytest.raises(errors.Invalid, match="no file of its own"):
            drop.take_from_host("a1", self.ID, image, None)
        assert [record.name for record in store.list_images()] == ["public"]
        assert not store.has_snapshot(self.ID)

    def test_a_linked_folder_is_not_entered(self, tmp_path: Path, store: FolderStore, drop: DropFolders) -> None:
        """It would move the content of another image away."""
        [public] = store.list_images()
        (tmp_path / "drop" / "a1" / "added").mkdir()
        (tmp_path / "drop" / "a1" / "added" / self.ID).symlink_to(tmp_path / "store" / "added" / public.id)
        with pytest.raises(errors.ServiceUnavailable, match="symbolic link"):
            drop.take_from_host("a1", self.ID, IMAGE, None)
        assert b"".join(store.read_content(public.id)) == b"of the operator"

    def test_what_is_not_safe_is_no_image(self, tmp_path: Path, store: FolderStore, drop: DropFolders) -> None:
        place = tmp_path / "drop" / "a1" / "added" / self.ID / "content"
        place.parent.mkdir(parents=True)
        place.write_bytes(qcow2(backing_file="/etc/passwd"))
        with pytest.raises(errors.Invalid, match="backing file"):
            drop.take_from_host("a1", self.ID, IMAGE, None)
        assert [record.name for record in store.list_images()] == ["public"]

    def test_a_move_that_was_interrupted_goes_on(self, tmp_path: Path, store: FolderStore, drop: DropFolders) -> None:
        FolderStore(tmp_path / "drop" / "a1").add_image([b"content"], name="x", image_id=self.ID)
        (tmp_path / "store" / "added" / self.ID).mkdir()
        content = tmp_path / "drop" / "a1" / "added" / self.ID / "content"
        content.rename(tmp_path / "store" / "added" / self.ID / "content")
        assert [record.name for record in store.list_images()] == ["public"]
        for _ in range(2):
            drop.take_from_host("a1", self.ID, IMAGE, None)
        assert store.get_record(self.ID).name == "mine"
        assert not content.parent.exists()


def test_what_nobody_takes_is_removed(cloud: World) -> None:
    theirs, store = FolderStore(drop_of(cloud) / "a1"), FolderStore(cloud.images)
    snapshot, image = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
    theirs.save_snapshot(snapshot, b"late")
    theirs.add_image([b"late"], name="x", image_id=image)
    store.save_snapshot("any", b"")
    cloud.api.write(image_removals.add_removals, {snapshot: None, image: None}, 1.0)
    remove_images(cloud.api, store, DropFolders(drop_of(cloud), store))
    assert dropped(cloud) == []
