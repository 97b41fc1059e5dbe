"""Copies of disks of other hosts: read from a shared file system, or sent by the other host's libvirt.

Only the layer that the guest has written to is copied. Its base comes from this host's cache, if that has the same content, else it
is copied too.
"""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from compute.libvirt import binding, qemu_img
from compute.libvirt.connection import LibvirtConnection, code_of
from compute.libvirt.guest_files import EPHEMERAL_DISK, ROOT_DISK
from compute.libvirt.opts import LibvirtSettings
from images import files
from images.cache import ImageCache
from images.store import unless
from objects import errors, text
from objects.build import Origin
from service.private_files import FILE_MODE

libvirt = binding.load()

BASE = "base"
"""The file of a base in a guest's folder, if the cache does not have it."""


class Peer(ABC):
    """The guest's files on the other host. Every method raises ``errors.BuildFailed``."""

    @abstractmethod
    def folder(self) -> Path:
        """The guest's folder there."""

    @abstractmethod
    def chunks(self, path: Path) -> Iterator[bytes]:
        """The content of a file there. Raises ``FileNotFoundError`` if there is none."""

    @abstractmethod
    def check_off(self) -> None:
        """Raise ``errors.BuildFailed`` unless the guest is off there: its disk would change while it is copied."""


class Copies:
    """Makes the disks of guests that come from other hosts."""

    def __init__(self, settings: LibvirtSettings, cache: ImageCache) -> None:
        self._settings = settings
        self._cache = cache

    def copy(self, origin: Origin, image_id: str | None, project_id: str, folder: Path, cancel: threading.Event) -> None:
        """Copy the disks of ``origin`` into ``folder``.

        Raises ``errors.BuildFailed`` if they cannot be read completely, or if ``cancel`` was set.
        """
        with self._peer(origin) as peer:
            peer.check_off()
            self._fetch(peer, peer.folder() / ROOT_DISK, folder / ROOT_DISK, cancel)
            if not self._fetch(peer, peer.folder() / EPHEMERAL_DISK, folder / EPHEMERAL_DISK, cancel, optional=True):
                (folder / EPHEMERAL_DISK).unlink(missing_ok=True)
            peer.check_off()
            self._set_base(peer, folder, image_id, project_id, cancel)

    def _set_base(self, peer: Peer, folder: Path, image_id: str | None, project_id: str, cancel: threading.Event) -> None:
        """Let the copy have its base on this host."""
        disk = folder / ROOT_DISK
        backing = qemu_img.backing_file(disk)
        if backing is None:
            return
        base, base_format = self._cached(backing.name, image_id, project_id, cancel)
        if base is None:
            base = folder / BASE
            self._fetch(peer, backing if backing.is_absolute() else peer.folder() / backing, base, cancel)
            base_format = qemu_img.backing_format(disk)
        qemu_img.rebase(disk, base, base_format)

    def _cached(self, name: str, image_id: str | None, project_id: str, cancel: threading.Event) -> tuple[Path | None, str]:
        """The base in the cache if its content is that of ``name``, which is a hash; None: the image has changed or is gone."""
        try:
            cached = self._cache.base(image_id or "", cancel, project_id)
        except (errors.NotFound, errors.BuildAborted):
            return None, ""
        return (cached.path, cached.disk_format) if cached.path.name == name else (None, "")

    def _fetch(self, peer: Peer, source: Path, target: Path, cancel: threading.Event, *, optional: bool = False) -> bool:
        """Copy one file; whether there is one."""
        try:
            files.write(target, unless(cancel, peer.chunks(source)), mode=FILE_MODE)
        except FileNotFoundError as error:
            if optional:
                return False
            raise errors.BuildFailed(f"The disk {source} cannot be copied: it does not exist.") from error
        except OSError as error:
            raise errors.BuildFailed(f"The disk {source} cannot be copied: {error.strerror or error}.") from error
        return True

    @contextmanager
    def _peer(self, origin: Origin) -> Iterator[Peer]:
        if self._settings.peer_instances_path:
            yield SharedFolder(Path(self._settings.peer_instances_path.format(host=origin.host)), origin)
        elif self._settings.peer_uri:
            with _connected(self._settings.peer_uri.format(host=origin.host), self._settings.open_timeout) as connection:
                yield RemoteLibvirt(connection, origin)
        else:
            raise errors.BuildFailed(
                f"The disk on host {origin.host} cannot be copied: set [libvirt] peer_instances_path or peer_uri on this host."
            )


class SharedFolder(Peer):
    """The other host's folder on a file system that this host sees too."""

    def __init__(self, instances_path: Path, origin: Origin) -> None:
        self._folder = instances_path / text.file_name(origin.instance_uuid)

    def folder(self) -> Path:
        return self._folder

    def chunks(self, path: Path) -> Iterator[bytes]:
        return files.chunks(path)

    def check_off(self) -> None:
        disk = self._folder / ROOT_DISK
        if not disk.exists():
            raise errors.BuildFailed(f"The disk {disk} cannot be copied: it does not exist.")
        qemu_img.info(disk)  # QEMU has a lock on a disk that it writes to


class RemoteLibvirt(Peer):
    """The other host's libvirt, which reads files as volumes of a storage pool."""

    def __init__(self, connection: LibvirtConnection, origin: Origin) -> None:
        self._connection = connection
        self._origin = origin

    def folder(self) -> Path:
        with self._reading():
            root = ElementTree.fromstring(self._domain().XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))  # noqa: S314 - libvirt wrote it
        for source in root.iterfind("devices/disk[@device='disk']/source"):
            path = Path(source.get("file", ""))
            if path.name == ROOT_DISK:
                return path.parent
        raise errors.BuildFailed(f"The guest on host {self._origin.host} has no disk.")

    def chunks(self, path: Path) -> Iterator[bytes]:
        connection = self._connection.get()
        with self._pool(path.parent) as pool:
            try:
                volume = pool.storageVolLookupByName(path.name)
            except libvirt.libvirtError as error:
                if code_of(error) == libvirt.VIR_ERR_NO_STORAGE_VOL:
                    raise FileNotFoundError(path) from error
                raise
            stream = connection.newStream()
            with self._reading():
                volume.download(stream, 0, 0, 0)
                while chunk := stream.recv(files.CHUNK_SIZE):
                    yield chunk
                stream.finish()

    def check_off(self) -> None:
        with self._reading():
            if self._domain().isActive():
                raise errors.BuildFailed(f"The guest still runs on host {self._origin.host}, so its disk cannot be copied.")

    def _domain(self) -> Any:
        return self._connection.get().lookupByUUIDString(self._origin.instance_uuid)

    @contextmanager
    def _pool(self, folder: Path) -> Iterator[Any]:
        """The storage pool of a folder, which lasts as long as this copy unless it was there before."""
        connection = self._connection.get()
        try:
            pool = connection.storagePoolLookupByTargetPath(str(folder))
        except libvirt.libvirtError:
            element = ElementTree.Element("pool", {"type": "dir"})
            ElementTree.SubElement(element, "name").text = f"sc-copy-{uuid.uuid4()}"
            ElementTree.SubElement(ElementTree.SubElement(element, "target"), "path").text = str(folder)
            with self._reading():
                pool = connection.storagePoolCreateXML(ElementTree.tostring(element, encoding="unicode"))
            made = True
        else:
            made = False
        try:
            yield pool
        finally:
            if made:
                _quietly(pool.destroy)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except libvirt.libvirtError as error:
            what = f"The disk on host {self._origin.host} cannot be copied"
            raise errors.BuildFailed(f"{what}: {error.get_error_message() or error}") from error


@contextmanager
def _connected(uri: str, timeout: float) -> Iterator[LibvirtConnection]:
    connection = LibvirtConnection(uri, timeout)
    try:
        connection.get()
        yield connection
    except errors.HypervisorDown as error:  # it is not this host's
        raise errors.BuildFailed(f"The other host's libvirt cannot be used: {error}") from error
    finally:
        connection.close()


def _quietly(call: Any) -> None:
    try:
        call()
    except libvirt.libvirtError:
        return
