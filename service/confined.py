"""Files below a folder that another host or process writes to: no name there leads anywhere else.

Whoever writes there may put a link, a pipe or a device in the place of a file or of a folder. So each folder is opened by its name
in the one before, never through a link, and only a regular file is read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def open_below(folder: Path, *names: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file, and return its descriptor.

    ``folder``: the operator's, so it may be reached through links. ``names``: of the folders below it, and of the file. ``flags``:
    of ``os.open``.

    Raises FileNotFoundError; OSError also for a link, a name that leads elsewhere, and whatever is not a regular file.
    """
    with folder_below(folder, *names[:-1]) as descriptor:
        opened = _open(names[-1], flags | os.O_NONBLOCK, descriptor)  # a pipe without a writer would wait for one
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return opened


@contextmanager
def folder_below(folder: Path, *names: str) -> Iterator[int]:
    """The descriptor of a folder, for ``dir_fd``. Raises OSError as ``open_below`` does."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            inner = _open(name, os.O_PATH | os.O_DIRECTORY, descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def read_below(folder: Path, *names: str, limit: int) -> bytes:
    """The content of a small file. Raises OSError as ``open_below`` does, and for one of more than ``limit`` bytes."""
    with os.fdopen(open_below(folder, *names), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes")
    return content


def _open(name: str, flags: int, folder: int) -> int:
    if "/" in name or name in ("", ".", ".."):
        raise OSError(errno.EINVAL, "its name leads elsewhere")
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and flags & os.O_DIRECTORY):
            raise OSError(error.errno, "it is a symbolic link, or not a folder") from error
        raise
