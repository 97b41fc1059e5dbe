"""Disks that another host wrote: nothing that they name is opened on this host."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from compute.libvirt import qemu_img
from compute.libvirt.copies import Copies
from compute.libvirt.guest_files import GuestFiles
from compute.libvirt.opts import LibvirtSettings
from images.cache import ImageCache
from images.store import FolderStore
from objects import errors
from objects.build import Origin
from tests.support.disk_images import MIB, qcow2

IMAGE = str(uuid.uuid4())
BASE = b"the content of an image".ljust(MIB, b"\0")
HASH = hashlib.sha512(BASE).hexdigest()
SECRET = b"transport_url = rabbit://host-b:password-of-b@broker/"
needs_qemu_img = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-utils")


class Host:
    """The host b, and on a file system that it sees the folders of the host a, which is taken."""

    def __init__(self, path: Path) -> None:
        self.secret = path / "compute.conf"
        self.secret.write_bytes(SECRET.ljust(MIB, b"\n"))
        self.folder = path / "b" / "guest"
        self.folder.mkdir(parents=True)
        self.uuid = str(uuid.uuid4())
        self.there = path / "net" / "a" / "instances" / self.uuid
        self.there.mkdir(parents=True)
        self.store = FolderStore(path / "images")
        self.store.add_image([b"another image"], name="another", image_id=str(uuid.uuid4()))
        self.cache = ImageCache(path / "cache", self.store)
        self.template = str(path / "net" / "{host}" / "instances")

    def add_image(self, owner: str = "") -> Path:
        """The image whose content is the base; it is in the cache then."""
        self.store.add_image([BASE], name="image", image_id=IMAGE, owner=owner)
        return self.cache.fetch_base(IMAGE, threading.Event(), owner).path

    def copy(self, *, project_id: str = "p1", host: str = "a") -> None:
        settings = LibvirtSettings(peer_instances_path=self.template)
        origin = Origin(instance_uuid=self.uuid, host=host)
        Copies(settings, self.cache).copy_disks(origin, IMAGE, project_id, self.folder, threading.Event())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def put(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def absolute_path(host: Host) -> None:
    put(host.there / "disk", qcow2(backing_file=str(host.secret)))


def path_with_a_hash(host: Host) -> None:
    """The last part of the path looks like a base: that of a file of the host b."""
    other = host.secret.with_name("f" * 128)
    host.secret.rename(other)
    put(host.there / "disk", qcow2(backing_file=str(other)))


def description(host: Host) -> None:
    put(host.there / "disk", qcow2(backing_file=f'json:{{"driver":"raw","file.filename":"{host.secret}"}}'))


def link_as_base(host: Host) -> None:
    (host.there / "base").symlink_to(host.secret)
    put(host.there / "disk", qcow2(backing_file="base"))


def link_as_hashed_base(host: Host) -> None:
    (host.there / HASH).symlink_to(host.secret)
    put(host.there / "disk", qcow2(backing_file=HASH))


def other_content_than_the_hash(host: Host) -> None:
    put(host.there / HASH, b"other content")
    put(host.there / "disk", qcow2(backing_file=HASH))


def chain(host: Host) -> None:
    put(host.there / "base", qcow2(backing_file=str(host.secret)))
    put(host.there / "disk", qcow2(backing_file="base"))


def base_with_data_file(host: Host) -> None:
    put(host.there / "base", qcow2(features=1 << 2))
    put(host.there / "disk", qcow2(backing_file="base"))


def data_file(host: Host) -> None:
    put(host.there / "disk", qcow2(features=1 << 2))


def data_file_beside_a_base(host: Host) -> None:
    host.add_image()
    put(host.there / "disk", qcow2(features=1 << 2, backing_file=HASH))


def raw_disk(host: Host) -> None:
    put(host.there / "disk", b"raw".ljust(MIB, b"\0"))


def long_name(host: Host) -> None:
    head = bytearray(qcow2(backing_file=str(host.secret)))
    head[16:20] = struct.pack(">I", 5000)
    put(host.there / "disk", bytes(head))


def linked_disk(host: Host) -> None:
    put(host.secret, qcow2())
    (host.there / "disk").symlink_to(host.secret)


def linked_folder(host: Host) -> None:
    put(host.secret.with_name("disk"), qcow2())
    host.there.rmdir()
    host.there.symlink_to(host.secret.parent)


def linked_host(host: Host) -> None:
    """The folder of the host itself is a link to another place."""
    elsewhere = host.secret.parent / "elsewhere" / "instances" / host.uuid
    elsewhere.mkdir(parents=True)
    put(elsewhere / "disk", qcow2())
    shutil.rmtree(host.there.parent.parent)
    host.there.parent.parent.symlink_to(host.secret.parent / "elsewhere")


def pipe(host: Host) -> None:
    os.mkfifo(host.there / "disk")


def ephemeral_with_base(host: Host) -> None:
    put(host.there / "disk", qcow2())
    put(host.there / "disk.ephemeral", qcow2(backing_file=str(host.secret)))


def linked_ephemeral(host: Host) -> None:
    put(host.there / "disk", qcow2())
    (host.there / "disk.ephemeral").symlink_to(host.secret)


FORGED = [
    *(absolute_path, path_with_a_hash, description, link_as_base, link_as_hashed_base, other_content_than_the_hash, chain),
    *(base_with_data_file, data_file, data_file_beside_a_base, raw_disk, long_name, linked_disk, linked_folder, linked_host, pipe),
    *(ephemeral_with_base, linked_ephemeral),
]


@pytest.mark.parametrize("forge", FORGED)
def test_a_forged_disk_opens_no_host_file(host: Host, forge: Callable[[Host], None]) -> None:
    forge(host)
    with pytest.raises((errors.BuildFailed, errors.BuildAborted), match=r"cannot be (copied|used)"):
        host.copy()
    assert not any(SECRET in file.read_bytes() for file in host.folder.iterdir())


@pytest.mark.parametrize("name", ["..", ".", "a/../../b", "/etc", ""])
def test_a_host_name_does_not_lead_elsewhere(host: Host, name: str) -> None:
    with pytest.raises(errors.BuildFailed, match="name"):
        host.copy(host=name)


def test_a_base_of_another_project_is_no_base(host: Host) -> None:
    """The cache of this host has it, and the forged disk knows its hash."""
    host.add_image(owner="another-project")
    put(host.there / "disk", qcow2(backing_file=HASH))
    with pytest.raises(errors.BuildFailed, match="does not exist"):
        host.copy()


def test_a_disk_under_a_hypervisor_is_not_copied(host: Host) -> None:
    put(host.there / "disk", qcow2())
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 101, 1, 0)
    with (host.there / "disk").open("r+b") as held:
        fcntl.fcntl(held, fcntl.F_OFD_SETLK, lock)
        with pytest.raises(errors.BuildFailed, match="is not off"):
            host.copy()


@needs_qemu_img
def test_qemu_locks_what_is_looked_at(host: Host) -> None:
    qemu_img.create(host.there / "disk", MIB)
    writer = subprocess.Popen(["qemu-io", "-f", "qcow2", str(host.there / "disk")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(b"length\n")
        writer.stdin.flush()
        assert b"1 MiB" in writer.stdout.readline()
        with pytest.raises(errors.BuildFailed, match="is not off"):
            host.copy()
    finally:
        writer.communicate(b"quit\n")
    host.copy()


@needs_qemu_img
@pytest.mark.parametrize("place", ["cache", "beside"])
def test_a_disk_comes_with_its_base(host: Host, tmp_path: Path, place: str) -> None:
    if place == "cache":
        host.add_image()
    else:
        put(host.there / HASH, BASE)
    base = tmp_path / "cache-of-a" / HASH
    base.parent.mkdir()
    put(base, BASE)
    qemu_img.create_overlay(host.there / "disk", base, "raw", None)
    host.copy()

    on_this_host = tmp_path / "cache" / HASH if place == "cache" else host.folder / HASH
    assert qemu_img.backing_file(host.folder / "disk") == on_this_host
    qemu_img.flatten_disk(host.folder / "disk", tmp_path / "flat")
    subprocess.run(["qemu-img", "convert", "-O", "raw", tmp_path / "flat", tmp_path / "raw"], check=True)
    assert (tmp_path / "raw").read_bytes() == BASE


@needs_qemu_img
def test_a_base_of_an_older_release_moves_on(host: Host) -> None:
    put(host.there / "base", BASE)
    qemu_img.create_overlay(host.there / "disk", host.there / "base", "raw", None)
    host.copy()

    assert qemu_img.backing_file(host.folder / "disk") == host.folder / "base"


def test_the_base_is_beside_the_disk_until_another(tmp_path: Path) -> None:
    """An agent gives the bases of all its disks a second name there, also those that an older release has made."""
    files = GuestFiles(str(tmp_path / "instances"), str(tmp_path / "drives"))
    files.open()
    folder = files.make_folder("guest")
    for name in (HASH, "f" * 128, "other"):
        put(tmp_path / name, b"base")
        files.keep_base(folder / "disk", tmp_path / name)
        files.keep_base(folder / "disk", tmp_path / name)
    files.keep_base(folder / "disk", tmp_path / ("e" * 128))
    assert sorted(file.name for file in folder.iterdir()) == sorted([HASH, "f" * 128, "unfinished"])
    assert (folder / HASH).samefile(tmp_path / HASH)

    files.forget_bases("guest", tmp_path / HASH)
    assert sorted(file.name for file in folder.iterdir()) == sorted([HASH, "unfinished"])
