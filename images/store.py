"""Images in a folder that all conductors and agents reach, such as a network file system.

In the folder itself are snapshots of shelved servers, one file each. In its folder ``added`` are the images that operators added,
and those that users uploaded or made of their servers, each in a folder with its file and its record.

An image is written as a whole: a crash at any moment leaves the image, or nothing under its name. What an interrupted
``save_snapshot`` has left is removed with the snapshot. What an interrupted ``add_image`` or ``delete`` has left is removed by a
later one.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import stat
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from images import files
from images.inspection import inspect_file
from images.record import ImageRecord
from objects import errors, text, typed
from objects.stored_image import ImageDetails
from objects.task import NewImage, StoredContent
from service.confined import folder_below, open_below, read_below
from service.rate_limited_log import RateLimitedLog

_COMPLAINTS = RateLimitedLog(logging.getLogger(__name__))

NOT_CONFIGURED = "no image store is configured: set [images] folder"

RECORD_SIZE_LIMIT = 4 << 20
"""Bytes that the record of an image may have."""
LEFTOVER_AGE_S = 3600.0
"""Seconds after which a copy that has not grown is taken for the rest of a process that died."""

_PART = ".part"
_ADDED, _CONTENT, _RECORD = "added", "content", "record.json"
_SNAPSHOT_MODE = 0o600  # it holds a tenant's disk
_FOLDER_MODE, _IMAGE_MODE = 0o755, 0o644  # agents may be other users than the operator; the mode of the store decides who enters


class FolderStore:
    """The images of one folder. Every method raises errors.ServiceUnavailable if the folder cannot be used."""

    def __init__(self, folder: str | Path, drop: str | Path | None = None) -> None:
        """``drop``: the folder that snapshots and images of servers are written into (``images.drop``); None: the store itself."""
        self._folder = Path(folder)
        self._added = self._folder / _ADDED
        self._written = FolderStore(drop) if drop is not None else self

    # -- snapshots of servers ----------------------------------------------------------------------------------------------------

    def save_snapshot(self, image_id: str, content: bytes) -> StoredContent:
        """Store a snapshot durably, and replace one of this name. Returns once it is complete, with what was written."""
        return self._written._save_content(image_id, [content])

    def save_file(self, image_id: str, file: Path, cancel: threading.Event | None = None) -> StoredContent:
        """Store the content of a file as ``save_snapshot`` does, without having it in memory.

        Raises errors.TaskFailed if the file cannot be read, or if ``cancel`` was set.
        """
        return self._written._save_content(image_id, _read_local(file, cancel or threading.Event()))

    def read(self, image_id: str, hash_value: str = "") -> bytes:
        """The content of a small snapshot. ``hash_value``: the SHA-512 that it must have; empty: any.

        Raises errors.NotFound if there is none of this name, and errors.Invalid for other content.
        """
        content = b"".join(self._read(image_id, text.file_name(image_id)))
        check_hash(image_id, hash_value, hashlib.sha512(content).hexdigest())
        return content

    def copy_to(self, image_id: str, file: Path, cancel: threading.Event, hash_value: str = "") -> None:
        """Write a snapshot to a file durably, without having it in memory. ``hash_value``: see ``read``.

        Nothing is said about its format: inspect a disk of a hypervisor before it is opened (``images.inspection``). Raises
        errors.NotFound and errors.Invalid, and errors.BuildFailed if the file cannot be written or ``cancel`` was set.
        """
        try:
            content = until_cancelled(cancel, self._read(image_id, text.file_name(image_id)))
            check_hash(image_id, hash_value, files.write(file, content, mode=_SNAPSHOT_MODE).digest)
        except OSError as error:
            raise errors.BuildFailed(f"The snapshot cannot be written to {file}: {error.strerror or error}.") from error

    def has_snapshot(self, image_id: str) -> bool:
        """Whether there is a complete snapshot of this name."""
        return self.size_of_snapshot(image_id) is not None

    def size_of_snapshot(self, image_id: str) -> int | None:
        """Bytes; None if there is no complete snapshot of this name."""
        with self._translate_errors():
            self._check_folder()
            try:
                return self._snapshot_file(image_id).lstat().st_size
            except FileNotFoundError:
                return None

    def remove_snapshot(self, image_id: str) -> None:
        """Remove a snapshot, and what saves of it have left. An unknown name is no error."""
        file = self._snapshot_file(image_id)
        with self._translate_errors():
            self._check_folder()
            file.unlink(missing_ok=True)
            for part in self._folder.glob(f"{file.name}.*{_PART}"):
                part.unlink(missing_ok=True)
            files.sync_folder(self._folder)

    # -- what hosts have left in drop folders --------------------------------------------------------------------------------------

    def take_snapshot(self, drop: Path, host: str, image_id: str) -> None:
        """Move a snapshot here from the drop folder of a host. One that is not there was taken before, or never written.

        Raises errors.Invalid for anything but a file.
        """
        name = text.file_name(image_id)
        with self._translate_errors():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                with folder_below(drop, host) as folder:
                    _check_file(name, folder)
                    os.rename(name, self._snapshot_file(image_id), src_dir_fd=folder)
            except FileNotFoundError:
                return
            files.sync_folder(self._folder)

    def take_image(self, drop: Path, host: str, image_id: str, image: NewImage, content: StoredContent | None) -> None:
        """Move an image of a server here from the drop folder of a host, with a record of our own.

        ``content``: what the host has told of it; None: as it looks. A death in between leaves an image without a record, which is
        none, and the next call goes on. Raises errors.Invalid for one that is not safe; it is removed then.
        """
        name = text.file_name(image_id)
        target = self._added / name
        with self._translate_errors():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._check_added()
            self._added.mkdir(exist_ok=True, mode=_FOLDER_MODE)
            if (target / _RECORD).exists():
                return
            dropped = _dropped_record(drop, host, name)
            target.mkdir(exist_ok=True, mode=_FOLDER_MODE)
            try:
                with folder_below(drop, host, _ADDED, name) as folder:
                    _check_file(_CONTENT, folder)
                    os.rename(_CONTENT, target / _CONTENT, src_dir_fd=folder)
            except FileNotFoundError:
                if not (target / _CONTENT).exists():
                    target.rmdir()
                    return
            except errors.Invalid:
                target.rmdir()
                raise
            try:
                record = self._record_of(image_id, image, content, dropped)
            except errors.Invalid:
                shutil.rmtree(target, ignore_errors=True)
                raise
            part = self._unique_part(target / _RECORD)
            files.write(part, [msgspec.json.encode(record)], mode=_IMAGE_MODE)
            part.replace(target / _RECORD)
            for folder_path in (target, self._added):
                files.sync_folder(folder_path)
            with suppress(OSError), folder_below(drop, host, _ADDED) as folder:
                shutil.rmtree(name, ignore_errors=True, dir_fd=folder)

    def _record_of(self, image_id: str, image: NewImage, content: StoredContent | None, dropped: ImageRecord | None) -> ImageRecord:
        file = self._added / text.file_name(image_id) / _CONTENT
        inspected = inspect_file(file, dropped.disk_format if dropped is not None else None)
        if content is None:
            digest = hashlib.sha512()
            for chunk in files.read_chunks(file):
                digest.update(chunk)
            content = StoredContent(size=file.stat().st_size, hash_value=digest.hexdigest())
        return ImageRecord(
            id=image_id,
            name=image.name,
            disk_format=inspected.disk_format,
            size=content.size,
            hash_algo="sha512",
            hash_value=content.hash_value,
            virtual_size=inspected.virtual_size,
            min_disk=image.min_disk,
            min_ram=image.min_ram,
            properties={**(dropped.properties if dropped is not None else {}), **image.properties},
            owner=image.owner,
            created_at=_format_now(),
        )

    # -- images that servers are built from --------------------------------------------------------------------------------------

    def add_image(
        self,
        file: Path | Iterable[bytes],
        *,
        name: str,
        image_id: str,
        disk_format: str | None = None,
        min_disk: int = 0,
        min_ram: int = 0,
        properties: Mapping[str, str] | None = None,
        tags: tuple[str, ...] = (),
        owner: str = "",
        cancel: threading.Event | None = None,
    ) -> ImageRecord:
        """Copy a file into the store, hashed while it is copied. ``file``: or its content. ``disk_format``: raw or qcow2; None: as
        the file looks.

        ``owner``: the only project that may use it; its content is then private. Raises errors.Conflict if the id is taken, and
        errors.Invalid if the file cannot be read, or is not an image that a host can safely open, or if ``cancel`` was set.
        """
        target = self._image_folder(image_id)
        with self._translate_errors():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._check_added()
            self._added.mkdir(exist_ok=True, mode=_FOLDER_MODE)
            self._check_free(target, image_id)
            part = self._unique_part(target)
            part.mkdir(mode=_FOLDER_MODE)
            try:
                content = part / _CONTENT
                mode = _SNAPSHOT_MODE if owner else _IMAGE_MODE
                raw_content = _read_given(file, cancel or threading.Event()) if isinstance(file, Path) else file
                checksum = hashlib.md5(usedforsecurity=False)
                written = files.write(content, _feed_checksum(raw_content, checksum.update), mode=mode)
                inspected = inspect_file(content, disk_format)
                record = ImageRecord(
                    id=image_id,
                    name=name,
                    disk_format=inspected.disk_format,
                    size=written.size,
                    hash_algo="sha512",
                    hash_value=written.digest,
                    virtual_size=inspected.virtual_size,
                    min_disk=min_disk,
                    min_ram=min_ram,
                    properties=dict(properties or {}),
                    tags=tags,
                    owner=owner,
                    created_at=_format_now(),
                    checksum=checksum.hexdigest(),
                )
                files.write(part / _RECORD, [msgspec.json.encode(record)], mode=_IMAGE_MODE)
                files.sync_folder(part)
                self._publish_folder(part, target, image_id)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
            files.sync_folder(self._added)
            self._remove_leftovers()
        return record

    def add_of_server(
        self,
        file: Path,
        image_id: str,
        image: NewImage,
        cancel: threading.Event,
        *,
        disk_format: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> StoredContent:
        """Store the copy of a server's disk as ``add_image`` does. An image of this id that is there stays. Raises
        errors.TaskFailed.

        ``properties``: those of the image that the server was built from, for names that the new one does not have.
        """
        try:
            added = self._written.add_image(
                file,
                name=image.name,
                image_id=image_id,
                disk_format=disk_format,
                min_disk=image.min_disk,
                min_ram=image.min_ram,
                properties={**(properties or {}), **image.properties},
                owner=image.owner,
                cancel=cancel,
            )
        except errors.Conflict:  # an earlier start of the agent has made it
            added = self._written.get_record(image_id)
        except errors.Invalid as error:
            raise errors.TaskFailed(str(error)) from error
        return added.stored_content

    def is_there(self) -> bool:
        """Whether the folder exists: the first image makes it."""
        return self._folder.is_dir()

    def list_images(self) -> list[ImageRecord]:
        """The images that operators added, and those of servers, by name. One whose record cannot be read is left out."""
        with self._translate_errors():
            self._check_folder()
            entries = list(os.scandir(self._added)) if self._added.exists() else []
            names = [entry.name for entry in entries if not entry.is_file(follow_symlinks=False)]
        records = [record for name in names if not name.endswith(_PART) and (record := self._listed_record(name)) is not None]
        return sorted(records, key=lambda record: (record.name, record.id))

    def get_record(self, image_id: str) -> ImageRecord:
        """The record of one of these images. Raises errors.NotFound."""
        record = self._read_record(text.file_name(image_id))
        if record is None:
            raise errors.NotFound(f"Image {image_id[:80]} is not in the image store.")
        return record

    def read_content(self, image_id: str) -> Generator[bytes, None, None]:
        """The content of one of these images. Raises errors.NotFound."""
        return self._read(image_id, _ADDED, text.file_name(image_id), _CONTENT)

    def change_record(self, image_id: str, name: str, details: ImageDetails) -> None:
        """Have the record of one of these images say what the API database says. Raises errors.NotFound."""
        changed = msgspec.structs.replace(
            self.get_record(image_id),
            name=name,
            min_disk=details.min_disk,
            min_ram=details.min_ram,
            properties=details.properties,
            tags=details.tags,
            updated_at=_format_now(),
        )
        record = self._image_folder(image_id) / _RECORD
        part = self._unique_part(record)
        with self._translate_errors():
            try:
                files.write(part, [msgspec.json.encode(changed)], mode=_IMAGE_MODE)
                part.replace(record)
                files.sync_folder(record.parent)
            except FileNotFoundError:
                raise errors.NotFound(f"Image {image_id[:80]} is not in the image store.") from None
            except BaseException:
                part.unlink(missing_ok=True)
                raise

    def delete(self, image_id: str) -> None:
        """Remove one of these images. Guests that were built from it keep their disks. Raises errors.NotFound."""
        target = self._image_folder(image_id)
        with self._translate_errors():
            self._check_folder()
            gone = self._unique_part(target)
            try:
                target.rename(gone)
            except FileNotFoundError:
                raise errors.NotFound(f"Image {image_id[:80]} is not in the image store.") from None
            files.sync_folder(self._added)
            shutil.rmtree(gone, ignore_errors=True)
            self._remove_leftovers()

    def _listed_record(self, name: str) -> ImageRecord | None:
        """The record of an entry of a list."""
        try:
            return self._read_record(name)
        except errors.ServiceUnavailable as error:
            _COMPLAINTS(name, logging.WARNING, "an image is left out of lists: %s", error)
            return None

    def _read_record(self, name: str) -> ImageRecord | None:
        """The record in the folder of this name; None: there is none. Raises errors.ServiceUnavailable if it cannot be read."""
        file = self._added / name / _RECORD
        with self._translate_errors():
            try:
                self._check_folder()
                record = typed.decode_json(read_below(self._folder, _ADDED, name, _RECORD, limit=RECORD_SIZE_LIMIT), ImageRecord)
                if text.file_name(record.id) != name:
                    raise msgspec.ValidationError("it is of another image")
            except FileNotFoundError:
                return None
            except msgspec.MsgspecError as error:
                raise errors.ServiceUnavailable(f"{file} cannot be read: {error}. Delete the image, and add it again.") from None
        return record

    def _check_free(self, target: Path, image_id: str) -> None:
        if target.exists():
            raise errors.Conflict(f"Image {image_id} exists: delete it first, or give another id.")

    def _publish_folder(self, part: Path, target: Path, image_id: str) -> None:
        try:
            part.rename(target)
        except OSError:  # nothing else replaces a folder that is not empty: somebody was faster
            self._check_free(target, image_id)
            raise

    def _remove_leftovers(self) -> None:
        """Remove copies that do not grow. Ages are told by the clock of the folder's own server."""
        now = self._added.stat().st_mtime
        for part in self._added.glob(f"*{_PART}"):
            if part.is_symlink():
                continue
            try:
                latest = max(entry.stat().st_mtime for entry in (part, *part.iterdir()))
            except FileNotFoundError:  # it ended just now
                continue
            if now - latest > LEFTOVER_AGE_S:
                shutil.rmtree(part, ignore_errors=True)

    def _image_folder(self, image_id: str) -> Path:
        return self._added / text.file_name(image_id)

    # ----------------------------------------------------------------------------------------------------------------------------

    def _save_content(self, image_id: str, content: Iterable[bytes]) -> StoredContent:
        file = self._snapshot_file(image_id)
        part = self._unique_part(file)
        with self._translate_errors():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                written = files.write(part, content, mode=_SNAPSHOT_MODE)
                part.replace(file)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            files.sync_folder(self._folder)
        return StoredContent(size=written.size, hash_value=written.digest)

    def _read(self, image_id: str, *names: str) -> Generator[bytes, None, None]:
        """The content of a file in the store. Agents write to the store, so no name there leads elsewhere."""
        with self._translate_errors():
            try:
                self._check_folder()
                yield from files.read_chunks(open_below(self._folder, *names))
            except FileNotFoundError:
                raise errors.NotFound(f"Image {image_id[:80]} is not in the image store.") from None

    def _unique_part(self, file: Path) -> Path:
        """A name of its own: another process may write the same image."""
        return file.with_name(f"{file.name}.{uuid.uuid4().hex}{_PART}")

    def _check_folder(self) -> None:
        """A folder that is away says nothing about the images in it."""
        if not self._folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "there is no such folder")
        self._check_added()

    def _check_added(self) -> None:
        """Agents write to the store: one that is taken may have put a link to another folder there."""
        if self._added.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, f"its folder {_ADDED} is a symbolic link")

    def _snapshot_file(self, image_id: str) -> Path:
        return self._folder / text.file_name(image_id)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise errors.ServiceUnavailable(f"The image store {self._folder} cannot be used: {reason}.") from error


def open_store(folder: str, drop: str = "") -> FolderStore | None:
    """The store in this folder, as ``[images] folder`` has it; None if that is empty. ``drop``: a host's own drop folder."""
    return FolderStore(folder, drop or None) if folder else None


def _feed_checksum(content: Iterable[bytes], update: Callable[[bytes], None]) -> Iterator[bytes]:
    for chunk in content:
        update(chunk)
        yield chunk


def check_hash(image_id: str, hash_value: str, actual: str) -> None:
    """Raises errors.Invalid if the content of an image has another SHA-512 than it must have. ``hash_value`` empty: any will do."""
    if hash_value and actual != hash_value:
        raise errors.Invalid(
            f"Image {image_id[:80]} was changed in the image store: the SHA-512 of its content begins with {actual[:12]}, but it "
            f"began with {hash_value[:12]} when it was stored. Restore the file, or delete the image."
        )


def _check_file(name: str, folder: int) -> None:
    """Raises errors.Invalid if this is no file of its own, and OSError if there is none. ``folder``: its descriptor."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise errors.Invalid(f"{name[:80]} is no file of its own.")


def _dropped_record(drop: Path, host: str, name: str) -> ImageRecord | None:
    """The record that a host has written beside an image. Only its properties and its format count."""
    try:
        return typed.decode_json(read_below(drop, host, _ADDED, name, _RECORD, limit=RECORD_SIZE_LIMIT), ImageRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def _format_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def until_cancelled(cancel: threading.Event, content: Iterable[bytes]) -> Iterator[bytes]:
    """The content. Raises errors.BuildFailed as soon as ``cancel`` is set."""
    for chunk in content:
        if cancel.is_set():
            raise errors.BuildFailed("The build was cancelled.")
        yield chunk


def _read_local(file: Path, cancel: threading.Event) -> Iterator[bytes]:
    """A file of a host. Its errors say nothing of the store."""
    try:
        for chunk in files.read_chunks(file):
            if cancel.is_set():
                raise errors.TaskFailed("The snapshot was cancelled.")
            yield chunk
    except OSError as error:
        raise errors.TaskFailed(f"{file} cannot be read: {error.strerror or error}.") from error


def _read_given(file: Path, cancel: threading.Event) -> Iterator[bytes]:
    """A file that an operator names, or that a host has made."""
    try:
        for chunk in files.read_chunks(file):
            if cancel.is_set():
                raise errors.Invalid("The copy was cancelled.")
            yield chunk
    except OSError as error:
        raise errors.Invalid(f"{file} cannot be read: {error.strerror or error}.") from error
