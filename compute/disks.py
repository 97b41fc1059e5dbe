"""The disks of simulated guests: small files whose contents show who wrote them, and whether a copy is torn.

A host's disks are in the folder ``HOST.disks``, one file per body. A guest's disk is replaced as a whole. A copy that is under way
is ``NAME.part``, so a copy that never ended is visible. ``remove_disk`` and a start of the agent remove it. The latter removes the
``NAME.new`` of a write that never ended, too.

A guest that is migrated live goes over when its target's ``NAME.incoming`` is renamed to ``NAME``: the file is there once, so this
happens once at most, and not after the target has closed or was destroyed. ``NAME.sending`` beside the source's disk says where it
goes, so that an agent that died in between sees whether it has gone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from objects import errors, text, typed
from objects.base import Object
from objects.task import Power, SendTarget
from service.confined import open_below, read_below

DISK_SIZE_LIMIT = 1 << 20
"""Bytes that the file of a disk may have."""

_PART, _NEW, _INCOMING, _SENDING = ".part", ".new", ".incoming", ".sending"


class Disk(Object, frozen=True, kw_only=True):
    """The contents. ``writes``: how often the guest has written. ``torn``: the guest wrote while this copy was made.

    ``received_from``: the body whose guest came here live. ``received_power``: on, or paused, as it came.
    """

    server_uuid: str
    image_id: str | None = None
    writes: int = 0
    torn: bool = False
    received_from: str | None = None
    received_power: Power = Power.ON


def disks_path(state_path: str, host: str) -> Path:
    """The folder with the disks of this simulated host."""
    return Path(state_path) / f"{host}.disks"


def read_disk(state_path: str, host: str, uuid: str) -> Disk | None:
    """The disk of this body; None: it has none. Raises OSError or msgspec.MsgspecError if it cannot be read."""
    return _read(file_of(disks_path(state_path, host), uuid))


def list_disks(state_path: str, host: str) -> list[str]:
    """The uuids of the disks of this simulated host, and the names of files that are none, such as a copy under way."""
    path = disks_path(state_path, host)
    return sorted(file.name for file in path.iterdir()) if path.exists() else []


def write_to_disk(state_path: str, host: str, uuid: str) -> None:
    """Act as the running guest: write once to its disk."""
    Disks(disks_path(state_path, host)).write(uuid)


class Disks:
    """The disks in one folder. One thread at a time changes the disk of one body."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> None:
        """Create the folder, and remove copies and writes that never ended. Raises OSError."""
        self._path.mkdir(exist_ok=True)
        for unfinished in (*self._path.glob(f"*{_PART}"), *self._path.glob(f"*{_NEW}")):
            unfinished.unlink(missing_ok=True)

    def create(self, uuid: str, disk: Disk) -> None:
        """Make the disk of a new guest. Written in place, because a boot must be cheap: a build that did not end is destroyed."""
        file = os.open(file_of(self._path, uuid), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(file, msgspec.json.encode(disk))
        finally:
            os.close(file)

    def replace_disk(self, uuid: str, disk: Disk) -> None:
        """Replace the disk of a guest."""
        file = file_of(self._path, uuid)
        fresh = file.with_name(f"{file.name}.{threading.get_native_id()}{_NEW}")
        try:
            fresh.write_bytes(msgspec.json.encode(disk))
            fresh.replace(file)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise

    def write(self, uuid: str) -> None:
        """The guest writes. A guest that an older release spawned has no disk."""
        if (disk := _read(file_of(self._path, uuid))) is not None:
            self.replace_disk(uuid, msgspec.structs.replace(disk, writes=disk.writes + 1))

    def copy_disk(self, uuid: str, source_state_path: str, host: str, source: str, delay: float, cancel: threading.Event) -> None:
        """Copy the disk of the body ``source`` on ``host`` in ``delay`` seconds. If its guest writes meanwhile, the copy is torn.

        Raises ``errors.BuildFailed`` if the disk cannot be read from start to end, or if the copy is cancelled.
        """
        file, origin = file_of(self._path, uuid), file_of(_peers_path(source_state_path, host), source)
        before = _read_origin(origin)
        part = _path_beside(file, _PART)
        part.write_bytes(msgspec.json.encode(before))
        if cancel.wait(delay) if delay else cancel.is_set():
            raise errors.BuildFailed("The copy of the disk was cancelled.")
        if _read_origin(origin).writes != before.writes:
            part.write_bytes(msgspec.json.encode(msgspec.structs.replace(before, torn=True)))
        part.replace(file)

    # -- live migration ----------------------------------------------------------------------------------------------------------

    def mark_incoming(self, uuid: str) -> None:
        """A disk may come to this body."""
        _path_beside(file_of(self._path, uuid), _INCOMING).touch(mode=0o600)

    def close(self, uuid: str) -> bool:
        """No disk may come to this body any more; returns whether one has come."""
        file = file_of(self._path, uuid)
        _path_beside(file, _INCOMING).unlink(missing_ok=True)
        return file.exists()

    def received_power(self, uuid: str) -> Power | None:
        """How the guest has come to this body, which listened; None: none has come."""
        disk = _read(file_of(self._path, uuid))
        return disk.received_power if disk is not None else None

    def hand_over(self, uuid: str, target_state_path: str, target: SendTarget, power: Power) -> None:
        """Give the disk's contents to the target, if that listens.

        ``power``: of the guest, on or paused. Raises ``errors.TaskFailed`` or OSError, and then the target has nothing: what makes
        it go over is the last step.
        """
        file = file_of(self._path, uuid)
        there = file_of(_peers_path(target_state_path, target.host), target.instance_uuid)
        disk = _read(file)
        if disk is None:
            raise errors.TaskFailed(f"The guest of {uuid} has no disk.")
        incoming = _path_beside(there, _INCOMING)
        try:
            _path_beside(file, _SENDING).write_bytes(msgspec.json.encode(target))
            with os.fdopen(_open_incoming(incoming), "r+b") as contents:
                contents.write(msgspec.json.encode(msgspec.structs.replace(disk, received_from=uuid, received_power=power)))
                contents.truncate()
            incoming.rename(there)
        except OSError as error:
            self.note_sent(uuid)
            if isinstance(error, FileNotFoundError):
                raise errors.TaskFailed(f"Host {target.host} does not listen for the guest any more.") from None
            raise

    def went_over(self, uuid: str, target_state_path: str) -> bool:
        """Whether the body's guest went over in a transfer whose end nobody has seen."""
        try:
            target = typed.decode_json(_path_beside(file_of(self._path, uuid), _SENDING).read_bytes(), SendTarget)
        except (FileNotFoundError, msgspec.MsgspecError):
            return False
        there = _read(file_of(_peers_path(target_state_path, target.host), target.instance_uuid))
        return there is not None and there.received_from == uuid

    def note_sent(self, uuid: str) -> None:
        """The end of the transfer is known."""
        _path_beside(file_of(self._path, uuid), _SENDING).unlink(missing_ok=True)

    def read_image(self, uuid: str, *, torn: bool) -> bytes:
        """A copy of the disk for the image store. ``torn``: its guest may write meanwhile. Raises errors.TaskFailed."""
        disk = _read(file_of(self._path, uuid))
        if disk is None:
            raise errors.TaskFailed(f"The disk of instance {uuid} does not exist.")
        return msgspec.json.encode(msgspec.structs.replace(disk, torn=disk.torn or torn))

    @contextmanager
    def copied_file(self, uuid: str) -> Iterator[Path]:
        """A file with a copy of the disk as it is at this moment, which is removed afterwards. Raises errors.TaskFailed."""
        part = _path_beside(file_of(self._path, uuid), _PART)
        part.write_bytes(self.read_image(uuid, torn=False))
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)

    def restore_disk(self, uuid: str, image: bytes) -> None:
        """Make the disk of a new guest from such a copy. Raises errors.BuildFailed for one that is not complete."""
        try:
            disk = typed.decode_json(image, Disk)
        except msgspec.MsgspecError as error:
            raise errors.BuildFailed(f"The snapshot cannot be copied: {error}") from error
        if disk.torn:
            raise errors.BuildFailed("The snapshot cannot be copied: it was taken of a guest that wrote meanwhile.")
        self.replace_disk(uuid, disk)

    def remove_disk(self, uuid: str) -> None:
        """Remove the disk and all that is beside it. An unknown uuid is no error."""
        file = file_of(self._path, uuid)
        for path in (file, *(_path_beside(file, kind) for kind in (_PART, _INCOMING, _SENDING))):
            path.unlink(missing_ok=True)


def file_of(folder: Path, uuid: str) -> Path:
    """The file of this body."""
    return folder / text.file_name(uuid)


def _path_beside(file: Path, kind: str) -> Path:
    return file.with_name(file.name + kind)


def _peers_path(state_path: str, host: str) -> Path:
    """``disks_path`` of a host that a message names. Raises errors.Invalid."""
    return disks_path(state_path, text.checked_name("host", host))


def _open_incoming(file: Path) -> int:
    """Open what a target listens with. It is not made anew: then nobody listens.

    Raises FileNotFoundError, also if the other host has put something else there.
    """
    try:
        return open_below(file.parent.parent, file.parent.name, file.name, flags=os.O_RDWR)
    except OSError as error:
        raise FileNotFoundError(file) from error


def _read(file: Path) -> Disk | None:
    """The disk; None: there is none. Raises OSError if another host has put a link in its place, or in that of its folder."""
    try:
        return typed.decode_json(read_below(file.parent.parent, file.parent.name, file.name, limit=DISK_SIZE_LIMIT), Disk)
    except FileNotFoundError:
        return None


def _read_origin(file: Path) -> Disk:
    try:
        disk = _read(file)
    except (OSError, msgspec.MsgspecError) as error:
        raise errors.BuildFailed(f"The disk {file} cannot be copied: {error}") from error
    if disk is None:
        raise errors.BuildFailed(f"The disk {file} cannot be copied: it does not exist.")
    return disk
