"""The files of a guest on its host: a folder with its disks and its console, and a config drive in memory.

A file named ``unfinished_names`` is in the folder while it is made and while it is removed. Only such a folder is ever removed
because libvirt has no domain for it: a libvirt that has lost its domains, or another one, must not cost anybody a disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from objects import errors, text
from service.private_files import FILE_MODE

FOLDER_MODE = 0o711
"""QEMU runs as another user, and must pass through. The files themselves are for their owner only, and libvirt lends them."""

UNFINISHED = "unfinished"
ROOT_DISK, EPHEMERAL_DISK, SWAP_DISK = "disk", "disk.ephemeral", "disk.swap"
RESCUE_DISK = "disk.rescue"
NEW_DISK = "disk.new"
"""A root disk that is being made, to replace the other one or to be stored as a snapshot."""
IMAGE_DISK = "image.new"
"""A copy of the root disk that is being made, to be stored as an image."""
BASE = "base"
"""A base that an older release has copied from another host with the disk."""
BASE_NAME = re.compile(r"[0-9a-f]{64}|[0-9a-f]{128}|base")
"""What the base of a disk may be named, in the cache or beside the disk: the hash of its content, or ``BASE``."""
CONSOLE, EARLIER_CONSOLE = "console.log", "console.log.1"


class GuestFiles:
    """The files of all guests of one host."""

    def __init__(self, instances_path: str, config_drive_path: str) -> None:
        self._instances = Path(instances_path)
        self._drives = Path(config_drive_path)

    def open(self) -> None:
        """Make the folders. Raises ``errors.Misconfigured``."""
        for option, path in (("instances_path", self._instances), ("config_drive_path", self._drives)):
            try:
                path.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
            except OSError as error:
                raise errors.Misconfigured(f"[libvirt] {option}: {path} cannot be used: {error.strerror}.") from error

    @property
    def instances_path(self) -> Path:
        """The folder with the folders of all guests."""
        return self._instances

    def folder_of(self, uuid: str) -> Path:
        """The folder of this guest."""
        return self._instances / text.file_name(uuid)

    def disk_path(self, uuid: str, name: str = ROOT_DISK) -> Path:
        """One of the guest's disks."""
        return self.folder_of(uuid) / name

    def console_path(self, uuid: str) -> Path:
        """What the guest writes to its console."""
        return self.folder_of(uuid) / CONSOLE

    def config_drive(self, uuid: str) -> Path:
        """The guest's config drive, which is there only if it has one."""
        return self._drives / f"{text.file_name(uuid)}.iso"

    def rescue_drive(self, uuid: str) -> Path:
        """The config drive of the guest's rescue system, while it is rescued."""
        drive = self.config_drive(uuid)
        return drive.with_name(f"{drive.name}.rescue")

    def end_rescue(self, uuid: str) -> None:
        """Remove what the guest was rescued with. Raises OSError."""
        for file in (self.disk_path(uuid, RESCUE_DISK), self.rescue_drive(uuid)):
            file.unlink(missing_ok=True)

    # -- life ----------------------------------------------------------------------------------------------------------------------

    def make_folder(self, uuid: str) -> Path:
        """Make the folder, marked as unfinished. Raises ``errors.BuildFailed`` if there is one."""
        folder = self.folder_of(uuid)
        try:
            folder.mkdir(mode=FOLDER_MODE)
            folder.chmod(FOLDER_MODE)  # whatever the umask
            (folder / UNFINISHED).touch(mode=FILE_MODE)
        except FileExistsError:
            raise errors.BuildFailed(f"The files of another guest of this uuid are in {folder}.") from None
        except OSError as error:
            raise errors.BuildFailed(f"{folder} cannot be made: {error.strerror}.") from error
        return folder

    def finish_guest(self, uuid: str) -> None:
        """The guest is complete."""
        (self.folder_of(uuid) / UNFINISHED).unlink(missing_ok=True)

    def begin_removal(self, uuid: str) -> None:
        """The guest is being removed: from here on, its folder may go without it."""
        folder = self.folder_of(uuid)
        if folder.is_dir():
            (folder / UNFINISHED).touch(mode=FILE_MODE)

    def remove_files(self, uuid: str) -> None:
        """Remove everything of the guest. An unknown uuid is no error. Raises ``errors.BuildFailed`` if something stays."""
        folder = self.folder_of(uuid)
        try:
            drive = self.config_drive(uuid)
            for file in (drive, *drive.parent.glob(f"{drive.name}.*")):  # and what an interrupted write has left
                file.unlink(missing_ok=True)
            if folder.is_dir():
                shutil.rmtree(folder)
        except OSError as error:
            raise errors.BuildFailed(f"{folder} cannot be removed: {error.strerror}.") from error

    def unfinished_names(self) -> Iterator[str]:
        """The names of the folders that are not finished. One that is empty counts: its maker died before it was marked."""
        for folder in self._guest_folders():
            if (folder / UNFINISHED).exists() or not any(folder.iterdir()):
                yield folder.name

    def disk_paths(self) -> Iterator[Path]:
        """Every disk of every guest."""
        for folder in self._guest_folders():
            yield from folder.glob(f"{ROOT_DISK}*")

    def keep_base(self, disk: Path, cached: Path) -> None:
        """Give the base of a disk a second name beside the disk: another host that takes the disk looks only there.

        ``cached``: where this host's cache would have it. On two file systems that is not possible. Then disks only go to hosts
        that have the image, or get it from its source.
        """
        if BASE_NAME.fullmatch(cached.name):
            with contextlib.suppress(OSError):  # it is there, or it is a base beside the disk, which the cache does not have
                os.link(cached, disk.parent / cached.name, follow_symlinks=False)

    def forget_bases(self, uuid: str, current: Path) -> None:
        """Remove the bases beside a guest's disk, but for its current one. Raises OSError."""
        for entry in self.folder_of(uuid).iterdir():
            if BASE_NAME.fullmatch(entry.name) and entry.name != current.name:
                entry.unlink(missing_ok=True)

    # -- consoles ------------------------------------------------------------------------------------------------------------------

    def read_console(self, uuid: str, max_bytes: int) -> bytes:
        """The end of the guest's console, empty if it has written nothing."""
        folder = self.folder_of(uuid)
        return b"".join(_read_tail(folder / name, max_bytes) for name in (EARLIER_CONSOLE, CONSOLE))[-max_bytes:]

    def cut_consoles(self, limit: int) -> None:
        """Keep only the end of consoles of more than ``limit`` bytes, so that no guest fills the host's disk."""
        for folder in self._guest_folders():
            console = folder / CONSOLE
            try:
                if console.stat().st_size <= limit:
                    continue
                shortened = folder / f"{EARLIER_CONSOLE}.new"
                with os.fdopen(os.open(shortened, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, FILE_MODE), "wb") as file:
                    file.write(_read_tail(console, limit // 2))
                shortened.replace(folder / EARLIER_CONSOLE)
                os.truncate(console, 0)  # QEMU appends to it
            except FileNotFoundError:
                continue

    def _guest_folders(self) -> Iterator[Path]:
        for entry in os.scandir(self._instances):
            if entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _read_tail(path: Path, count: int) -> bytes:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - count))
            return file.read(count)
    except FileNotFoundError:
        return b""
