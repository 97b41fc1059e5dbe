"""Disks that another host's libvirt sends."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from compute.libvirt import binding
from compute.libvirt.connection import LibvirtConnection, code_of
from compute.libvirt.guest_files import ROOT_DISK
from compute.libvirt.peers import Peer, checked_host
from images import files
from objects import errors
from objects.build import Origin

libvirt = binding.load_libvirt()


class RemoteLibvirt(Peer):
    """The other host's libvirt, which reads files as volumes of a storage pool."""

    def __init__(self, connection: LibvirtConnection, origin: Origin) -> None:
        self._connection = connection
        self._origin = origin

    def read_chunks(self, name: str) -> Iterator[bytes]:
        connection = self._connection.get()
        with self._open_pool(self._guest_folder()) as pool, self._reading_peer():
            try:
                volume = pool.storageVolLookupByName(name)
            except libvirt.libvirtError as error:
                if code_of(error) == libvirt.VIR_ERR_NO_STORAGE_VOL:
                    raise FileNotFoundError(name) from error
                raise
            stream = connection.newStream()
            volume.download(stream, 0, 0, 0)
            while chunk := stream.recv(files.CHUNK_SIZE):
                yield chunk
            stream.finish()

    def _guest_folder(self) -> Path:
        """The guest's folder there, as its own libvirt says: it is a path on that host, and nothing here opens it."""
        try:
            with self._reading_peer():
                root = ElementTree.fromstring(self._look_up_domain().XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))  # noqa: S314 - expat limits what entities grow to
        except ElementTree.ParseError as error:
            raise errors.BuildFailed(f"The domain on host {self._origin.host} cannot be read: {error}") from error
        for source in root.iterfind("devices/disk[@device='disk']/source"):
            path = Path(source.get("file", ""))
            if path.name == ROOT_DISK:
                return path.parent
        raise errors.BuildFailed(f"The guest on host {self._origin.host} has no disk.")

    def check_off(self) -> None:
        with self._reading_peer():
            if self._look_up_domain().isActive():
                raise errors.BuildFailed(f"The guest still runs on host {self._origin.host}, so its disk cannot be copied.")

    def _look_up_domain(self) -> Any:
        return self._connection.get().lookupByUUIDString(self._origin.instance_uuid)

    @contextmanager
    def _open_pool(self, folder: Path) -> Iterator[Any]:
        """The storage pool of a folder, which lasts as long as this copy unless it was there before."""
        connection = self._connection.get()
        try:
            pool = connection.storagePoolLookupByTargetPath(str(folder))
        except libvirt.libvirtError:
            element = ElementTree.Element("pool", {"type": "dir"})
            ElementTree.SubElement(element, "name").text = f"sc-copy-{uuid.uuid4()}"
            ElementTree.SubElement(ElementTree.SubElement(element, "target"), "path").text = str(folder)
            with self._reading_peer():
                pool = connection.storagePoolCreateXML(ElementTree.tostring(element, encoding="unicode"))
            is_ours = True
        else:
            is_ours = False
        try:
            yield pool
        finally:
            if is_ours:
                _ignore_errors_of(pool.destroy)

    @contextmanager
    def _reading_peer(self) -> Iterator[None]:
        try:
            yield
        except libvirt.libvirtError as error:
            failure = f"The disk on host {self._origin.host} cannot be copied"
            raise errors.BuildFailed(f"{failure}: {error.get_error_message() or error}") from error


@contextmanager
def connected_peer(template: str, timeout: float, origin: Origin) -> Iterator[RemoteLibvirt]:
    """The libvirt of the origin's host. ``template``: ``[libvirt] peer_uri``. Raises ``errors.BuildFailed``."""
    connection = LibvirtConnection(template.format(host=checked_host(origin)), timeout)
    try:
        connection.get()
        yield RemoteLibvirt(connection, origin)
    except errors.HypervisorDown as error:  # it is not this host's
        raise errors.BuildFailed(f"The other host's libvirt cannot be used: {error}") from error
    finally:
        connection.close()


def _ignore_errors_of(call: Any) -> None:
    try:
        call()
    except libvirt.libvirtError:
        return
