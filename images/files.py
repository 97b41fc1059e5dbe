"""Read and write files of gigabytes: in chunks, with holes, and durably."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from objects.base import Object

CHUNK_SIZE = 1 << 20
"""Bytes that are read at once. Whoever copies looks between two chunks whether it is to stop."""

_ZEROS = bytes(CHUNK_SIZE)


class Written(Object, frozen=True, kw_only=True):
    """What a file was written with. ``digest``: in hexadecimal digits."""

    size: int
    digest: str


def read_chunks(file: Path | int) -> Iterator[bytes]:
    """The content of a file. ``file``: or its descriptor, which is closed then.

    Raises OSError, also for the name of a folder or a device.
    """
    # a named pipe without a writer would wait for one
    descriptor = file if isinstance(file, int) else os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        while chunk := opened.read(CHUNK_SIZE):
            yield chunk


def write(file: Path, content: Iterable[bytes], *, mode: int, hash_algo: str = "sha512") -> Written:
    """Write a file durably, and replace what is in it. Zeros become holes. Raises OSError, and leaves a partial file then."""
    digest, size = hashlib.new(hash_algo), 0
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as opened:
        for chunk in content:
            digest.update(chunk)
            size += len(chunk)
            if len(chunk) <= CHUNK_SIZE and chunk == _ZEROS[: len(chunk)]:
                opened.seek(size)
            else:
                opened.write(chunk)
        opened.truncate(size)
        opened.flush()
        os.fsync(opened.fileno())
    return Written(size=size, digest=digest.hexdigest())


def sync_folder(folder: Path) -> None:
    """Make durable which files are in the folder. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
