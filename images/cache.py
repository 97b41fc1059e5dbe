"""A host's cache of base images, on which the disks of its guests are built.

A base is named by the hash of its content, so equal images share one. It appears under this name only once it is whole, verified,
inspected and durable. While it is downloaded it is ``HASH.part``. Whoever downloads or removes a base holds the lock of
``HASH.lock``, which the kernel releases whenever the process dies.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from images import files
from images.inspection import Inspected, inspect_file
from images.record import ImageRecord
from images.source import ImageSource
from images.store import check_hash, until_cancelled
from objects import errors
from objects.base import Object

LOCK_POLL_S = 0.1
"""Seconds between two looks at a lock that another download holds, and at ``cancel``."""

_PART, _LOCK = ".part", ".lock"
_CACHE_FILE = re.compile(r"([0-9a-f]{64}|[0-9a-f]{128})(?:\.part|\.lock)?")
_PRIVATE_MODE = 0o600


class CachedImage(Object, frozen=True, kw_only=True):
    """A base image of this host. Name its format whenever it is opened. ``virtual_size``: bytes of the disk that guests see."""

    path: Path
    disk_format: str
    virtual_size: int
    record: ImageRecord


class ImageCache:
    """The base images in one folder. Several threads and processes may use it at once.

    ``file_mode``: hypervisors often run guests as a user of their own, who must read bases, so by default everybody may. A base
    holds what an image holds, and nothing that a guest wrote. ``folder_mode``: nobody else can list the folder, so only who knows
    the hash of a content finds its base.
    """

    def __init__(self, folder: Path, source: ImageSource, *, file_mode: int = 0o644, folder_mode: int = 0o711) -> None:
        self._folder = folder
        self._source = source
        self._file_mode = file_mode
        self._folder_mode = folder_mode

    def fetch_base(
        self, image_id: str, cancel: threading.Event, project_id: str | None = None, hash_value: str = ""
    ) -> CachedImage:
        """The base of this image. It is downloaded if it is not here; while somebody else does that, this call waits.

        ``project_id``: who builds from it. None: only images for every project can be used. ``hash_value``: the SHA-512 that its
        content must have, whatever its source says now; empty: as its source says.

        Raises the errors of a build: errors.NotFound; errors.BuildAborted for an image that no host can use; errors.BuildFailed if
        this host cannot, and as soon as ``cancel`` is set; errors.ServiceUnavailable if the source cannot be asked now.
        """
        try:
            record = self._source.get_record(image_id)
            if record.owner not in ("", project_id):
                raise errors.NotFound(f"Image {image_id[:80]} does not exist for this project.")
            check_hash(image_id, hash_value, record.hash_value)
            with self._translate_errors():
                self._make_folder()
                return self._take_base(record, cancel)
        except errors.Invalid as error:
            raise errors.BuildAborted(str(error)) from error
        except errors.Forbidden as error:  # another host may have another login
            raise errors.BuildFailed(str(error)) from error

    def sweep_unused(self, in_use: Collection[Path], unused_for: float) -> list[Path]:
        """Remove bases that no disk names and nobody took for ``unused_for`` seconds, and the rests of downloads; return the bases.

        ``in_use``: the bases of the disks that exist now. A base that is taken while this runs stays, because taking sets its time.
        """
        names_in_use = {path.name for path in in_use}
        with self._translate_errors():
            entries = os.listdir(self._folder) if self._folder.exists() else []
            names = sorted({match[1] for entry in entries if (match := _CACHE_FILE.fullmatch(entry))})
            return [path for name in names if (path := self._sweep_base(name, name in names_in_use, unused_for)) is not None]

    def _sweep_base(self, name: str, in_use: bool, unused_for: float) -> Path | None:
        lock = self._try_lock(name)
        if lock is None:
            return None
        base, removed = self._folder / name, None
        with closing(lock):
            (self._folder / f"{name}{_PART}").unlink(missing_ok=True)
            if base.exists() and not in_use and time.time() - base.stat().st_mtime >= unused_for:
                base.unlink()
                removed = base
            lock.remove_file()
        return removed

    def _take_base(self, record: ImageRecord, cancel: threading.Event) -> CachedImage:
        base = self._folder / record.hash_value
        with self._hold_lock(base.name, cancel):
            inspected = self._find_finished(base, record) or self._download_base(base, record, cancel)
            if stat.S_IMODE(base.stat().st_mode) != self._file_mode:
                base.chmod(self._file_mode)
            os.utime(base)
        return CachedImage(path=base, disk_format=inspected.disk_format, virtual_size=inspected.virtual_size, record=record)

    def _find_finished(self, base: Path, record: ImageRecord) -> Inspected | None:
        """What the base is; None: it is not here. One of another size or format was damaged on this host, and is replaced."""
        try:
            return inspect_file(base, record.disk_format) if base.stat().st_size == record.size else None
        except (FileNotFoundError, errors.Invalid):
            return None

    def _download_base(self, base: Path, record: ImageRecord, cancel: threading.Event) -> Inspected:
        part = base.with_name(f"{base.name}{_PART}")
        try:
            with closing(self._source.read_content(record.id)) as content:
                written = files.write(
                    part, until_cancelled(cancel, _at_most(record, content)), mode=_PRIVATE_MODE, hash_algo=record.hash_algo
                )
            _check_content(record, written)
            inspected = inspect_file(part, record.disk_format)
            part.replace(base)
            files.sync_folder(self._folder)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return inspected

    def _make_folder(self) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folder.chmod(self._folder_mode)

    @contextmanager
    def _hold_lock(self, name: str, cancel: threading.Event) -> Iterator[None]:
        while (lock := self._try_lock(name)) is None:
            if cancel.wait(LOCK_POLL_S):
                raise errors.BuildFailed("The build was cancelled.")
        with closing(lock):
            yield

    def _try_lock(self, name: str) -> _Lock | None:
        """The lock of a base; None: somebody else holds it. Threads lock each other out too: each opens the file anew."""
        file = self._folder / f"{name}{_LOCK}"
        lock = _Lock(file)
        try:
            if lock.try_take():
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()
        return None

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """The source has its own errors, so an OSError is the host's."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise errors.BuildFailed(f"The image cache {self._folder} of this host cannot be used: {reason}.") from error


class _Lock:
    """A lock file that is open."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE_MODE)

    def try_take(self) -> bool:
        """Whether the lock is taken, of the file that has the name now: its last holder may have removed the one that we opened."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(self._descriptor), self._file.stat())
        except (BlockingIOError, FileNotFoundError):
            return False

    def remove_file(self) -> None:
        """Remove the file, while the lock is held."""
        self._file.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._descriptor)


def _at_most(record: ImageRecord, content: Iterator[bytes]) -> Iterator[bytes]:
    """The content, up to the first byte that is too much: a wrong size must not fill the disk."""
    size = 0
    for chunk in content:
        size += len(chunk)
        if size > record.size:
            raise errors.Invalid(f"Image {record.id} has more than the {record.size} bytes that its record says.")
        yield chunk


def _check_content(record: ImageRecord, written: files.Written) -> None:
    if written.size != record.size:
        raise errors.Invalid(f"Image {record.id} has {written.size} bytes, but its record says {record.size}.")
    if written.digest != record.hash_value:
        raise errors.Invalid(
            f"Image {record.id} is corrupt: its {record.hash_algo} begins with {written.digest[:12]}, but its record says "
            f"{record.hash_value[:12]}."
        )
