"""Images in a folder that all conductors and agents reach, such as a network file system.

An image is written as a whole: a crash at any moment leaves the image, or nothing under its name. What an interrupted ``save`` has
left is removed with the image.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from objects import errors, text

NOT_CONFIGURED = "no image store is configured: set [images] folder"

_PART = ".part"


class FolderStore:
    """The images of one folder. Every method raises errors.ServiceUnavailable if the folder cannot be used."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def save(self, image_id: str, content: bytes) -> None:
        """Store an image durably, and replace one of this name. Returns once it is complete."""
        file = self._file(image_id)
        part = file.with_name(f"{file.name}.{uuid.uuid4().hex}{_PART}")  # another process may save the same image
        with self._usable():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                _write(part, content)
                part.replace(file)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            _sync(self._folder)

    def read(self, image_id: str) -> bytes:
        """The content of an image. Raises errors.NotFound if there is none of this name."""
        with self._usable():
            try:
                self._check()
                return self._file(image_id).read_bytes()
            except FileNotFoundError:
                raise errors.NotFound(f"Image {image_id[:80]} is not in the image store.") from None

    def exists(self, image_id: str) -> bool:
        """Whether there is a complete image of this name."""
        with self._usable():
            self._check()
            return self._file(image_id).exists()

    def remove(self, image_id: str) -> None:
        """Remove an image, and what saves of it have left. An unknown name is no error."""
        file = self._file(image_id)
        with self._usable():
            self._check()
            file.unlink(missing_ok=True)
            for part in self._folder.glob(f"{file.name}.*{_PART}"):
                part.unlink(missing_ok=True)
            _sync(self._folder)

    def _check(self) -> None:
        """A folder that is away says nothing about the images in it."""
        if not self._folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "there is no such folder")

    def _file(self, image_id: str) -> Path:
        return self._folder / text.file_name(image_id)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise errors.ServiceUnavailable(f"The image store {self._folder} cannot be used: {error.strerror}.") from error


def open_store(folder: str) -> FolderStore | None:
    """The store in this folder, as ``[images] folder`` has it; None if that is empty."""
    return FolderStore(folder) if folder else None


def _write(file: Path, content: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
