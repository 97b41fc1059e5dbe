"""Copies of disks of other hosts: read from a shared file system, or sent by the other host's libvirt.

Only the layer that the guest has written to is copied. Its base comes from this host's cache, if that has the same content, else it
is copied too. The other host wrote the layer, so no path in it is followed: a base is named by its hash, and looked for where bases
are. What was copied is inspected before anything opens it as a disk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compute.libvirt import qemu_img
from compute.libvirt.guest_files import BASE, BASE_NAME, EPHEMERAL_DISK, ROOT_DISK
from compute.libvirt.opts import LibvirtSettings
from compute.libvirt.peers import Peer, SharedFolder
from images import files
from images.cache import ImageCache
from images.inspection import inspect_file
from images.store import until_cancelled
from objects import errors
from objects.build import Origin
from service.private_files import FILE_MODE


class Copies:
    """Makes the disks of guests that come from other hosts."""

    def __init__(self, settings: LibvirtSettings, cache: ImageCache) -> None:
        self._settings = settings
        self._cache = cache

    def copy_disks(self, origin: Origin, image_id: str | None, project_id: str, folder: Path, cancel: threading.Event) -> None:
        """Copy the disks of ``origin`` into ``folder``.

        Raises ``errors.BuildFailed`` if they cannot be read completely, or if ``cancel`` was set. Raises ``errors.BuildAborted`` if
        no host can safely open them.
        """
        with self._open_peer(origin) as peer, _abort_if_invalid(origin):
            peer.check_off()
            self._fetch_file(peer, ROOT_DISK, folder, cancel)
            has_ephemeral = self._fetch_file(peer, EPHEMERAL_DISK, folder, cancel, optional=True)
            peer.check_off()
            if has_ephemeral:
                inspect_file(folder / EPHEMERAL_DISK, "qcow2")
            self._set_base(peer, folder, image_id, project_id, cancel)

    def _set_base(self, peer: Peer, folder: Path, image_id: str | None, project_id: str, cancel: threading.Event) -> None:
        """Let the copy have its base on this host."""
        disk = folder / ROOT_DISK
        name = _take_base_name(disk)
        if name is None:
            return
        base, base_format = self._find_cached(name, image_id, project_id, cancel)
        if base is None:
            base = folder / name
            self._fetch_file(peer, name, folder, cancel)
            base_format = inspect_file(base).disk_format
        qemu_img.rebase_overlay(disk, base, base_format)

    def _find_cached(self, name: str, image_id: str | None, project_id: str, cancel: threading.Event) -> tuple[Path | None, str]:
        """The base in the cache if its content is that of ``name``, which is a hash; None: the image has changed or is gone.

        It must be that of the server's image, which its project may use: the cache also has images of other projects.
        """
        try:
            cached = self._cache.fetch_base(image_id or "", cancel, project_id)
        except (errors.NotFound, errors.BuildAborted):
            return None, ""
        return (cached.path, cached.disk_format) if cached.path.name == name else (None, "")

    def _fetch_file(self, peer: Peer, name: str, folder: Path, cancel: threading.Event, *, optional: bool = False) -> bool:
        """Copy one file; whether there is one. One that is named by a hash must have it."""
        target = folder / name
        hash_algo = "sha256" if len(name) == _SHA256_DIGITS else "sha512"
        try:
            written = files.write(target, until_cancelled(cancel, peer.read_chunks(name)), mode=FILE_MODE, hash_algo=hash_algo)
        except FileNotFoundError as error:
            target.unlink(missing_ok=True)
            if optional:
                return False
            raise errors.BuildFailed(f"The file {name} of the guest cannot be copied: it does not exist.") from error
        except OSError as error:
            raise errors.BuildFailed(f"The file {name} of the guest cannot be copied: {error.strerror or error}.") from error
        if BASE_NAME.fullmatch(name) and name not in (BASE, written.digest):
            raise errors.BuildFailed(f"The base {name[:12]} of the guest cannot be copied: its content has another hash.")
        return True

    @contextmanager
    def _open_peer(self, origin: Origin) -> Iterator[Peer]:
        if self._settings.peer_instances_path:
            yield SharedFolder(self._settings.peer_instances_path, origin)
        elif self._settings.peer_uri:
            from compute.libvirt.remote_disks import connected_peer  # only these need libvirt

            with connected_peer(self._settings.peer_uri, self._settings.open_timeout, origin) as peer:
                yield peer
        else:
            raise errors.BuildFailed(
                f"The disk on host {origin.host} cannot be copied: set [libvirt] peer_instances_path or peer_uri on this host."
            )


_SHA256_DIGITS = 64
_BACKING_FIELDS = slice(8, 20)
"""Bytes of a qcow2 header: where the name of the base begins, and its length."""


def _take_base_name(disk: Path) -> str | None:
    """The name of the base that a copied disk names, without its folder; None: it has none. The disk names none afterwards.

    Raises errors.Invalid for a disk that is not safe, and for a base whose name is none.
    """
    backing = qemu_img.backing_file(disk)
    if backing is not None:
        descriptor = os.open(disk, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, bytes(_BACKING_FIELDS.stop - _BACKING_FIELDS.start), _BACKING_FIELDS.start)
        finally:
            os.close(descriptor)
    inspect_file(disk, "qcow2")
    if backing is None:
        return None
    if not BASE_NAME.fullmatch(backing.name):
        raise errors.Invalid("The image is not safe: its base is not named by a hash.")
    return backing.name


@contextmanager
def _abort_if_invalid(origin: Origin) -> Iterator[None]:
    try:
        yield
    except errors.Invalid as error:
        raise errors.BuildAborted(f"The disk on host {origin.host} cannot be used: {error}") from error
