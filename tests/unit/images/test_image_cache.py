"""A host's cache of base images: one download, whole or not at all, and kept while it is used."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from images.cache import ImageCache
from images.record import ImageRecord
from images.source import ImageSources
from images.store import FolderStore
from objects import errors
from service.periodic import wait_until
from tests.support.disk_images import MIB, qcow2

ONE = "11111111-1111-4111-8111-111111111111"
TWO = "22222222-2222-4222-8222-222222222222"
PATIENCE = 60.0
GO_ON = threading.Event()
"""A build that nobody cancels."""
DAY = 86400.0


class SteppedSource:
    """Images in memory, in pieces of 4 KiB. ``paused``: the download stops after its first piece until ``going_on`` is set."""

    def __init__(self, content: bytes, *, paused: bool = False, **fields: Any) -> None:
        self.content = content
        self.record = msgspec.structs.replace(
            ImageRecord(
                id=ONE,
                name="one",
                disk_format="qcow2",
                size=len(content),
                hash_algo="sha512",
                hash_value=hashlib.sha512(content).hexdigest(),
            ),
            **fields,
        )
        self.downloads = 0
        self.begun, self.going_on = threading.Event(), threading.Event()
        if not paused:
            self.going_on.set()

    def get_record(self, image_id: str) -> ImageRecord:
        return msgspec.structs.replace(self.record, id=image_id)

    def read_content(self, image_id: str) -> Generator[bytes, None, None]:
        self.downloads += 1
        for start in range(0, len(self.content), 4096):
            yield self.content[start : start + 4096]
            self.begun.set()
            assert self.going_on.wait(PATIENCE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """A store with one image of 3 MiB."""
    store = FolderStore(tmp_path / "images")
    (tmp_path / "given").write_bytes(qcow2(3 * MIB, virtual_size=9 * MIB))
    store.add_image(tmp_path / "given", name="one", image_id=ONE)
    return store


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.endswith(".lock"))


def test_a_base_is_complete_hash_named_and_readable(store: FolderStore, folder: Path) -> None:
    record = store.get_record(ONE)
    cached = ImageCache(folder, store).fetch_base(ONE, GO_ON)

    assert (cached.disk_format, cached.virtual_size, cached.record) == ("qcow2", 9 * MIB, record)
    assert cached.path == folder / record.hash_value
    assert hashlib.sha512(cached.path.read_bytes()).hexdigest() == record.hash_value
    assert (cached.path.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o644, 0o711)
    assert names(folder) == [record.hash_value]
    narrow = ImageCache(folder, store, file_mode=0o640).fetch_base(ONE, GO_ON)
    assert narrow.path.stat().st_mode & 0o777 == 0o640


def test_equal_images_share_a_base_and_one_download(folder: Path) -> None:
    source = SteppedSource(qcow2())
    cache = ImageCache(folder, source)

    assert (
        cache.fetch_base(ONE, GO_ON).path
        == cache.fetch_base(TWO, GO_ON).path
        == ImageCache(folder, source).fetch_base(ONE, GO_ON).path
    )
    assert source.downloads == 1


def test_many_threads_download_once(folder: Path) -> None:
    source = SteppedSource(qcow2(), paused=True)
    cache = ImageCache(folder, source)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(cache.fetch_base(ONE, GO_ON).path.read_bytes())) for _ in range(12)]
    for thread in threads:
        thread.start()
    assert source.begun.wait(PATIENCE)
    source.going_on.set()
    for thread in threads:
        thread.join(PATIENCE)

    assert found == [source.content] * 12
    assert source.downloads == 1


def test_a_download_and_a_wait_can_be_cancelled(folder: Path) -> None:
    source = SteppedSource(qcow2(), paused=True)
    cache = ImageCache(folder, source)
    first_cancel, second_cancel = threading.Event(), threading.Event()
    told: list[str] = []

    def build(cancel: threading.Event) -> None:
        try:
            cache.fetch_base(ONE, cancel)
        except errors.BuildFailed as error:
            told.append(str(error))

    first = threading.Thread(target=build, args=(first_cancel,))
    first.start()
    assert source.begun.wait(PATIENCE)
    second = threading.Thread(target=build, args=(second_cancel,))
    second.start()
    second_cancel.set()
    second.join(PATIENCE)
    assert told == ["The build was cancelled."]
    first_cancel.set()
    source.going_on.set()
    first.join(PATIENCE)
    assert told == ["The build was cancelled."] * 2
    assert names(folder) == []


CHILD = """
import sys, threading
from pathlib import Path
from images.cache import ImageCache
from images.store import FolderStore
base = ImageCache(Path(sys.argv[2]), FolderStore(sys.argv[1])).fetch_base(sys.argv[3], threading.Event())
print(base.path.stat().st_ino)
"""


def start(store_folder: Path, folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", CHILD, str(store_folder), str(folder), ONE]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])


def test_two_processes_share_a_download(store: FolderStore, tmp_path: Path, folder: Path) -> None:
    children = [start(tmp_path / "images", folder) for _ in range(3)]
    files = {child.communicate(timeout=PATIENCE)[0] for child in children}

    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(files) == 1
    assert names(folder) == [store.get_record(ONE).hash_value]


def test_a_process_waits_for_a_concurrent_live_download(store: FolderStore, tmp_path: Path, folder: Path) -> None:
    source = SteppedSource((tmp_path / "given").read_bytes(), paused=True)
    child = os.fork()
    if not child:
        ImageCache(folder, source).fetch_base(ONE, GO_ON)
        os._exit(1)
    assert wait_until(lambda: folder.exists() and any(entry.name.endswith(".part") for entry in folder.iterdir()), PATIENCE)
    cancel, told = threading.Event(), []
    waiting = threading.Thread(target=lambda: told.append(ImageCache(folder, store).fetch_base(ONE, cancel).path.name))
    waiting.start()
    assert told == []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    waiting.join(PATIENCE)
    assert told == [store.get_record(ONE).hash_value]


def test_a_download_killed_at_any_byte_is_repeated(store: FolderStore, folder: Path) -> None:
    """Killed by itself after exactly so many bytes, in pieces of any size; then at each call that finishes the base."""
    record, content = store.get_record(ONE), b"".join(store.read_content(ONE))
    chosen = random.Random(7)

    class Fatal:
        def __init__(self, after: int) -> None:
            self.after = after

        def get_record(self, image_id: str) -> ImageRecord:
            return record

        def read_content(self, image_id: str) -> Generator[bytes, None, None]:
            place = 0
            while place < self.after:
                size = min(chosen.choice((1, 511, 4096, MIB)), self.after - place)
                yield content[place : place + size]
                place += size
            os.kill(os.getpid(), signal.SIGKILL)

    def fatal_calls(call: str) -> None:
        def die(*_: object, **__: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(os if call == "fsync" else Path, call, die)

    points: list[int | str] = [0, 1, len(content), *(chosen.randrange(len(content)) for _ in range(40))]
    for point in [*points, "fsync", "replace", "chmod"]:
        child = os.fork()
        if not child:
            if isinstance(point, str):
                folder.mkdir(exist_ok=True)
                fatal_calls(point)
            ImageCache(folder, Fatal(point) if isinstance(point, int) else store).fetch_base(ONE, GO_ON)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, point
        assert set(names(folder)) <= {f"{record.hash_value}.part"} | ({record.hash_value} if point == "chmod" else set())
        cached = ImageCache(folder, store).fetch_base(ONE, GO_ON)
        assert cached.path.read_bytes() == content
        assert cached.path.stat().st_mode & 0o777 == 0o644
        assert names(folder) == [record.hash_value]
        cached.path.unlink()


def test_processes_killed_at_random_moments_leave_nothing_wrong(store: FolderStore, tmp_path: Path, folder: Path) -> None:
    record, chosen = store.get_record(ONE), random.Random(11)
    for _ in range(12):
        child = start(tmp_path / "images", folder)
        wait_until(lambda: folder.exists() and bool(list(folder.iterdir())), 1.0)
        time.sleep(chosen.random() * 0.03)
        child.kill()
        child.communicate()
        cached = ImageCache(folder, store).fetch_base(ONE, GO_ON)
        assert hashlib.sha512(cached.path.read_bytes()).hexdigest() == record.hash_value
        assert names(folder) == [record.hash_value]
        cached.path.unlink()


# -- what is refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "fields", "text"),
    [
        (qcow2(), {"hash_value": "ab" * 64}, "is corrupt: its sha512 begins with [0-9a-f]{12}, but its record says abababababab"),
        (qcow2(), {"size": 100}, "has more than the 100 bytes"),
        (qcow2(), {"size": 10**15}, "has 200000 bytes, but its record says 1000000000000000"),
        (qcow2(), {"disk_format": "raw"}, "has the format qcow2, but raw is declared"),
        (bytes(900), {}, "has the format raw, but qcow2 is declared"),
        (qcow2(backing_file="/etc/passwd"), {}, "has a backing file"),
        (qcow2(features=4), {}, "another file"),
    ],
)
def test_an_unusable_image_aborts_the_build(folder: Path, content: bytes, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.BuildAborted, match=text):
        ImageCache(folder, SteppedSource(content, **fields)).fetch_base(ONE, GO_ON)
    assert names(folder) == []


def test_an_image_may_be_hashed_by_sha256(folder: Path) -> None:
    content = qcow2()
    digest = hashlib.sha256(content).hexdigest()
    source = SteppedSource(content, hash_algo="sha256", hash_value=digest)

    assert ImageCache(folder, source).fetch_base(ONE, GO_ON).path == folder / digest


def test_a_project_image_is_for_this_project_only(folder: Path) -> None:
    cache = ImageCache(folder, SteppedSource(qcow2(), owner="p1"))
    for project_id in ("p2", "", None):
        with pytest.raises(errors.NotFound, match=f"Image {ONE} does not exist for this project"):
            cache.fetch_base(ONE, GO_ON, project_id)
    assert cache.fetch_base(ONE, GO_ON, "p1").path.exists()


def test_an_image_changed_in_the_store_aborts_builds(store: FolderStore, tmp_path: Path, folder: Path) -> None:
    content = tmp_path / "images" / "added" / ONE / "content"
    with content.open("r+b") as opened:
        opened.seek(2 * MIB)
        opened.write(b"rotten")
    with pytest.raises(errors.BuildAborted, match=f"Image {ONE} is corrupt"):
        ImageCache(folder, store).fetch_base(ONE, GO_ON)


def test_a_base_damaged_on_this_host_is_replaced(store: FolderStore, folder: Path) -> None:
    cache = ImageCache(folder, store)
    base = cache.fetch_base(ONE, GO_ON).path
    whole = base.read_bytes()
    for damage in (whole[:-1], bytes(len(whole)), b""):
        base.write_bytes(damage)
        assert cache.fetch_base(ONE, GO_ON).path.read_bytes() == whole


def test_a_missing_image_or_store_suggests_a_remedy(store: FolderStore, tmp_path: Path, folder: Path) -> None:
    cache = ImageCache(folder, ImageSources([store]))
    with pytest.raises(errors.NotFound, match=f"Image {TWO} does not exist.*superconductor image add.*glance"):
        cache.fetch_base(TWO, GO_ON)
    (tmp_path / "images").rename(tmp_path / "away")
    with pytest.raises(errors.ServiceUnavailable, match="no such folder"):
        cache.fetch_base(ONE, GO_ON)
    with pytest.raises(errors.NotFound, match="does not exist"):
        ImageCache(folder, ImageSources([])).fetch_base(ONE, GO_ON)


def test_a_host_without_room_or_permission_tries_again(store: FolderStore, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.BuildFailed, match=r"The image cache .* of this host cannot be used: Not a directory"):
        ImageCache(tmp_path / "file" / "cache", store).fetch_base(ONE, GO_ON)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, 2 * MIB))
        try:
            ImageCache(folder, store).fetch_base(ONE, GO_ON)
        except errors.BuildFailed as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as told:
        assert told.read() == f"The image cache {folder} of this host cannot be used: File too large."
    assert names(folder) == []
    assert ImageCache(folder, store).fetch_base(ONE, GO_ON).path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system to fill up")
def test_a_full_file_system_fails_the_build(store: FolderStore, folder: Path) -> None:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("this machine mounts no file system for root")
    try:
        with pytest.raises(errors.BuildFailed, match="cannot be used: No space left on device"):
            ImageCache(folder, store).fetch_base(ONE, GO_ON)
        assert names(folder) == []
    finally:
        subprocess.run(["umount", str(folder)], check=True)


# -- what is removed -------------------------------------------------------------------------------------------------------------


def test_a_base_is_removed_once_unused_for_long(store: FolderStore, folder: Path) -> None:
    cache = ImageCache(folder, store)
    assert cache.sweep_unused([], DAY) == []
    base = cache.fetch_base(ONE, GO_ON).path
    assert cache.sweep_unused([], DAY) == []
    os.utime(base, (0, time.time() - DAY - 60))
    assert cache.sweep_unused([Path("/another/mount") / base.name], DAY) == []
    assert cache.fetch_base(ONE, GO_ON).path == base
    assert cache.sweep_unused([], DAY) == [], "it was just taken"
    os.utime(base, (0, time.time() - DAY - 60))
    assert cache.sweep_unused([], DAY) == [base]
    assert list(folder.iterdir()) == []


def test_a_sweep_removes_only_remnants_of_dead_downloads(folder: Path) -> None:
    source = SteppedSource(qcow2(), paused=True)
    cache = ImageCache(folder, source)
    found: list[bytes] = []
    loading = threading.Thread(target=lambda: found.append(cache.fetch_base(ONE, GO_ON).path.read_bytes()))
    loading.start()
    assert source.begun.wait(PATIENCE)
    for name in ("a" * 128 + ".part", "b" * 64 + ".lock", "notes.txt", "a" * 100):
        (folder / name).touch()
        os.utime(folder / name, (0, 0))

    assert cache.sweep_unused([], 0.0) == []
    source.going_on.set()
    loading.join(PATIENCE)
    assert found == [source.content]
    assert names(folder) == sorted([source.record.hash_value, "notes.txt", "a" * 100])


def test_bases_are_taken_and_swept_at_once(store: FolderStore, folder: Path) -> None:
    """Swept as soon as it is there: each taker still gets a whole base, or one that is gone before it looked."""
    cache, ended, wrong = ImageCache(folder, store), threading.Event(), []

    def sweep() -> None:
        while not ended.is_set():
            ImageCache(folder, store).sweep_unused([], 0.0)

    def take() -> None:
        for _ in range(15):
            try:
                if cache.fetch_base(ONE, GO_ON).path.stat().st_size != 3 * MIB:
                    wrong.append("size")
            except FileNotFoundError:
                continue
            except errors.SuperconductorError as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(3)]
    sweeper = threading.Thread(target=sweep)
    for thread in (sweeper, *threads):
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    ended.set()
    sweeper.join(PATIENCE)
    assert wrong == []


@pytest.mark.parametrize("is_cached", [True, False])
def test_content_replaced_with_its_record_is_refused(store: FolderStore, tmp_path: Path, folder: Path, is_cached: bool) -> None:
    """A host knows the hash from the request, whatever the store says now."""
    before, cache = store.get_record(ONE), ImageCache(folder, store)
    if is_cached:
        cache.fetch_base(ONE, GO_ON, hash_value=before.hash_value)
    store.delete(ONE)
    (tmp_path / "given").write_bytes(qcow2(virtual_size=9 * MIB, seed=2))
    store.add_image(tmp_path / "given", name="one", image_id=ONE)
    with pytest.raises(errors.BuildAborted, match=f"Image {ONE} was changed in the image store: .* begins with"):
        cache.fetch_base(ONE, GO_ON, hash_value=before.hash_value)
    assert [entry.name for entry in tmp_path.glob("cache/*[!k]")] == ([before.hash_value] if is_cached else [])
    assert cache.fetch_base(ONE, GO_ON).record == store.get_record(ONE), "an image without a hash on record is as its store says"


def test_a_record_of_other_content_is_refused(store: FolderStore, tmp_path: Path, folder: Path) -> None:
    """The record has the right hash still, or says that it is one of another kind."""
    record = store.get_record(ONE)
    file = tmp_path / "images" / "added" / ONE / "content"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(errors.BuildAborted, match="is corrupt"):
        ImageCache(folder, store).fetch_base(ONE, GO_ON, hash_value=record.hash_value)
    forged = msgspec.structs.replace(record, hash_algo="sha256")
    (file.parent / "record.json").write_bytes(msgspec.json.encode(forged))
    with pytest.raises(errors.BuildAborted, match="is corrupt"):
        ImageCache(folder, store).fetch_base(ONE, GO_ON, hash_value=record.hash_value)
    assert names(folder) == []
