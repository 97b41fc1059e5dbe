"""Images that operators add to the folder store: whole or not at all, and never ones that are not safe."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from images import files
from images.store import LEFTOVER_AGE_S, FolderStore
from objects import errors
from tests.support.disk_images import MIB, qcow2
from tests.support.threads import run_threads

ONE = "11111111-1111-4111-8111-111111111111"
TWO = "22222222-2222-4222-8222-222222222222"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "images")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "given.qcow2"
    file.write_bytes(qcow2(3 * MIB, virtual_size=9 * MIB))
    return file


def content_of(store: FolderStore, image_id: str) -> bytes:
    return b"".join(store.read_content(image_id))


def test_an_added_image_is_readable_until_deleted(store: FolderStore, file: Path) -> None:
    added = store.add_image(file, name="one", image_id=ONE, min_disk=2, min_ram=64, properties={"os": "x"})

    assert (added.id, added.name, added.disk_format, added.size, added.virtual_size) == (ONE, "one", "qcow2", 3 * MIB, 9 * MIB)
    assert (added.min_disk, added.min_ram, added.properties, added.owner) == (2, 64, {"os": "x"}, "")
    assert (added.hash_algo, added.hash_value) == ("sha512", hashlib.sha512(file.read_bytes()).hexdigest())
    assert added.created_at.endswith("Z")
    assert store.get_record(ONE) == added
    assert store.list_images() == [added]
    assert content_of(store, ONE) == file.read_bytes()
    store.delete(ONE)
    assert store.list_images() == []
    for call in (store.get_record, store.delete, lambda image_id: content_of(store, image_id)):
        with pytest.raises(errors.NotFound, match="is not in the image store"):
            call(ONE)


def test_snapshots_and_added_images_do_not_meet(store: FolderStore, file: Path) -> None:
    store.save_snapshot(TWO, b"a snapshot")
    store.add_image(file, name="one", image_id=ONE)
    store.add_image(file, name="same id as the snapshot", image_id=TWO)

    assert [image.id for image in store.list_images()] == [ONE, TWO]
    assert not store.has_snapshot(ONE)
    store.remove_snapshot(TWO)
    assert content_of(store, TWO) == file.read_bytes()
    store.save_snapshot(ONE, b"another")
    store.delete(ONE)
    assert store.read(ONE) == b"another"


def test_concurrent_adds_get_distinct_ids(store: FolderStore, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.raw"
    other.write_bytes(bytes(5000))
    refused: list[errors.Conflict] = []
    together = threading.Barrier(2)

    def add(given: Path) -> None:
        together.wait()
        try:
            store.add_image(given, name=given.name, image_id=ONE)
        except errors.Conflict as error:
            refused.append(error)

    run_threads([threading.Thread(target=add, args=(given,)) for given in (file, other)])
    (image,) = store.list_images()
    assert len(refused) == 1
    assert content_of(store, ONE) == (tmp_path / image.name).read_bytes()
    with pytest.raises(errors.Conflict, match=f"Image {ONE} exists: delete it first, or give another id"):
        store.add_image(file, name="again", image_id=ONE)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (qcow2(backing_file="/etc/passwd"), "backing file"),
        (b"", "is empty"),
    ],
)
def test_an_unsafe_file_leaves_nothing(store: FolderStore, tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "given").write_bytes(content)
    with pytest.raises(errors.Invalid, match=text):
        store.add_image(tmp_path / "given", name="one", image_id=ONE)
    (tmp_path / "given").write_bytes(qcow2())
    with pytest.raises(errors.Invalid, match="raw is declared"):
        store.add_image(tmp_path / "given", name="one", image_id=ONE, disk_format="raw")
    assert list((tmp_path / "images" / "added").iterdir()) == []


def test_only_regular_files_are_added(store: FolderStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for given, text in ((tmp_path / "pipe", "not a regular file"), (tmp_path, "directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(errors.Invalid, match=f"{given.name} cannot be read: .*{text}"):
            store.add_image(given, name="one", image_id=ONE)


def test_holes_stay_holes(store: FolderStore, tmp_path: Path) -> None:
    given = tmp_path / "sparse.raw"
    with given.open("wb") as opened:
        opened.write(b"boot")
        opened.truncate(64 * MIB)
        opened.seek(32 * MIB)
        opened.write(b"data")
    store.add_image(given, name="one", image_id=ONE)

    stored = tmp_path / "images" / "added" / ONE / "content"
    assert (stored.stat().st_size, stored.stat().st_blocks * 512 < 8 * MIB) == (64 * MIB, True)
    assert content_of(store, ONE) == given.read_bytes()


def test_an_add_killed_anywhere_leaves_nothing(
    store: FolderStore, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(point: int | str) -> None:
        if isinstance(point, int):
            monkeypatch.setattr(files, "read_chunks", lambda given: _dying(given.read_bytes(), point))
        elif point == "rename":
            monkeypatch.setattr(Path, "rename", lambda *_: os._exit(0))
        else:
            syncs = iter(range(int(point)))
            monkeypatch.setattr(os, "fsync", lambda _: None if next(syncs, None) is not None else os._exit(0))
        store.add_image(file, name="one", image_id=ONE)
        os._exit(1)

    store.add_image(file, name="before", image_id=TWO)
    for point in (0, 1, 511, 600, MIB + 7, 3 * MIB, "0", "1", "2", "rename"):
        child = os.fork()
        if not child:
            dies(point)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [image.id for image in store.list_images()] == [TWO]
    added = tmp_path / "images" / "added"
    left = [entry for entry in added.iterdir() if entry.name != TWO]
    assert len(left) == 10
    store.add_image(file, name="one", image_id=ONE)
    assert len(list(added.iterdir())) == 12, "they could still grow"
    for entry in left:
        for each in (*entry.iterdir(), entry):
            os.utime(each, (0, each.stat().st_mtime - LEFTOVER_AGE_S - 60))
    store.delete(ONE)
    assert [entry.name for entry in added.iterdir()] == [TWO]


def _dying(content: bytes, after: int) -> Iterator[bytes]:
    yield content[:after]
    os._exit(0)


def test_an_unreadable_record_is_named_and_deletable(store: FolderStore, file: Path, tmp_path: Path) -> None:
    store.add_image(file, name="one", image_id=ONE)
    (tmp_path / "images" / "added" / ONE / "record.json").write_text("{")
    with pytest.raises(errors.ServiceUnavailable, match=r"record\.json cannot be read: .*Delete the image, and add it again"):
        store.get_record(ONE)
    store.delete(ONE)
    assert store.list_images() == []


def test_a_missing_folder_is_not_an_empty_list(store: FolderStore) -> None:
    for call in (store.list_images, lambda: store.get_record(ONE), lambda: store.delete(ONE), lambda: content_of(store, ONE)):
        with pytest.raises(errors.ServiceUnavailable, match="cannot be used: there is no such folder"):
            call()


# -- snapshots as files ----------------------------------------------------------------------------------------------------------


def test_a_snapshot_goes_from_file_to_file(store: FolderStore, file: Path, tmp_path: Path) -> None:
    store.save_file(ONE, file)
    store.copy_to(ONE, tmp_path / "copy", threading.Event())

    assert (tmp_path / "copy").read_bytes() == store.read(ONE) == file.read_bytes()
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
    with pytest.raises(errors.NotFound, match="is not in the image store"):
        store.copy_to(TWO, tmp_path / "copy", threading.Event())


def test_a_cancelled_snapshot_copy_leaves_the_earlier_one(store: FolderStore, file: Path, tmp_path: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    store.save_snapshot(ONE, b"before")
    with pytest.raises(errors.TaskFailed, match="was cancelled"):
        store.save_file(ONE, file, cancelled)
    with pytest.raises(errors.BuildFailed, match="was cancelled"):
        store.copy_to(ONE, tmp_path / "copy", cancelled)
    assert store.read(ONE) == b"before"
    assert [entry.name for entry in (tmp_path / "images").iterdir()] == [ONE]


def test_copy_errors_say_which_side_is_at_fault(store: FolderStore, tmp_path: Path) -> None:
    store.save_snapshot(ONE, b"x")
    with pytest.raises(errors.TaskFailed, match="disk cannot be read: No such file"):
        store.save_file(ONE, tmp_path / "disk")
    with pytest.raises(errors.BuildFailed, match=r"cannot be written to .*: No such file"):
        store.copy_to(ONE, tmp_path / "none" / "disk", threading.Event())


def test_writing_counts_and_hashes_what_it_writes(tmp_path: Path) -> None:
    pieces: Iterable[bytes] = (b"a", bytes(files.CHUNK_SIZE), bytes(10), b"b" * 70_000)
    for algorithm in ("sha512", "sha256"):
        written = files.write(tmp_path / "file", pieces, mode=0o600, hash_algo=algorithm)
        content = b"".join(pieces)
        assert (written.size, written.digest) == (len(content), hashlib.new(algorithm, content).hexdigest())
        assert (tmp_path / "file").read_bytes() == content


def test_lists_leave_out_a_record_that_is_wrong(store: FolderStore, file: Path, tmp_path: Path) -> None:
    """A taken agent may write any record: the images of others are still listed."""
    added = tmp_path / "images" / "added"
    kept = store.add_image(file, name="one", image_id=ONE)
    (tmp_path / "record").write_bytes((added / ONE / "record.json").read_bytes())
    names = ("other-id", "link", "large", "text", "pipe", "linked-folder")
    for name in names[:-1]:
        (added / name).mkdir()
    (added / "other-id" / "record.json").write_bytes((added / ONE / "record.json").read_bytes())
    (added / "link" / "record.json").symlink_to(tmp_path / "record")
    with (added / "large" / "record.json").open("wb") as large:
        large.truncate(1 << 40)
    (added / "text" / "record.json").write_text("{")
    os.mkfifo(added / "pipe" / "record.json")
    (added / "linked-folder").symlink_to(added / ONE)

    assert store.list_images() == [kept]
    for name in names:
        with pytest.raises(errors.ServiceUnavailable):
            store.get_record(name)


def test_no_link_in_the_store_is_followed(store: FolderStore, file: Path, tmp_path: Path) -> None:
    store.add_image(file, name="one", image_id=ONE)
    content = tmp_path / "images" / "added" / ONE / "content"
    content.rename(tmp_path / "elsewhere")
    content.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.ServiceUnavailable, match="symbolic link"):
        content_of(store, ONE)


def test_no_image_is_written_through_a_link(store: FolderStore, file: Path, tmp_path: Path) -> None:
    """Nor are old folders removed there, whose names look like those of interrupted copies."""
    store.save_snapshot(TWO, b"a snapshot")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "precious.part").mkdir(parents=True)
    os.utime(elsewhere / "precious.part", (0, 0))
    (tmp_path / "images" / "added").symlink_to(elsewhere)
    for call in (lambda: store.add_image(file, name="one", image_id=ONE), lambda: store.delete("precious"), store.list_images):
        with pytest.raises(errors.ServiceUnavailable, match="symbolic link"):
            call()
    assert [entry.name for entry in elsewhere.iterdir()] == ["precious.part"]
