"""The files of a guest on another host. Whatever that host wrote is input: only known names below its folder are ever opened."""

from __future__ import annotations

import fcntl
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from compute.libvirt.guest_files import ROOT_DISK
from images import files
from objects import errors, text
from objects.build import Origin
from service.confined import open_below

_HOST = "{host}"
_LOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, process
_WRITER_LOCKS = (101, 3)
"""First and number of the bytes that a QEMU has locked of a disk that it may write to or resize: RAW_LOCK_PERM_BASE and the bits of
its permissions, in block/file-posix.c.
"""


class Peer(ABC):
    """The guest's folder on the other host. Every method raises ``errors.BuildFailed``."""

    @abstractmethod
    def read_chunks(self, name: str) -> Iterator[bytes]:
        """The content of a file in that folder. Raises ``FileNotFoundError`` if there is none, or another OSError."""

    @abstractmethod
    def check_off(self) -> None:
        """Raise ``errors.BuildFailed`` unless the guest is off there: its disk would change while it is copied."""


class SharedFolder(Peer):
    """The other host's folder on a file system that this host sees too.

    ``template``: ``[libvirt] peer_instances_path``. The operator's part of it ends where the name of the host begins. Below that,
    the other host may have put links to files of this one.
    """

    def __init__(self, template: str, origin: Origin) -> None:
        host = checked_host(origin)
        parts = Path(template).parts
        first = next(number for number, part in enumerate(parts) if _HOST in part)
        self._root = Path(*parts[:first])
        self._below = [*(part.format(host=host) for part in parts[first:]), text.file_name(origin.instance_uuid)]

    def read_chunks(self, name: str) -> Iterator[bytes]:
        return files.read_chunks(self._open(name))

    def check_off(self) -> None:
        disk = self._root.joinpath(*self._below, ROOT_DISK)
        try:
            descriptor = self._open(ROOT_DISK)
        except FileNotFoundError:
            raise errors.BuildFailed(f"The disk {disk} cannot be copied: it does not exist.") from None
        except OSError as error:
            raise errors.BuildFailed(f"The disk {disk} cannot be copied: {error.strerror or error}.") from error
        try:
            # asked here and not of qemu-img, which would open the files that the disk names
            start, length = _WRITER_LOCKS
            lock = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
            lock_state = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, lock))
        finally:
            os.close(descriptor)
        if lock_state[0] != fcntl.F_UNLCK:
            raise errors.BuildFailed(f"The disk {disk} cannot be copied: a QEMU has it open, so its guest is not off.")

    def _open(self, name: str) -> int:
        return open_below(self._root, *self._below, name)


def checked_host(origin: Origin) -> str:
    """The name of the origin's host, which takes its place in paths and URIs. Raises ``errors.BuildFailed``."""
    try:
        name = text.checked_name("host", origin.host)
    except errors.Invalid as error:
        raise errors.BuildFailed(str(error)) from error
    if not name.strip("."):
        raise errors.BuildFailed(f"host {name!r}: a name with dots only leads to another folder")
    return name
