"""Folders and files that only their owner may read; symbolic links are refused."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO

from objects import errors

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def own_folder(path: Path) -> None:
    """Make the folder if necessary, and allow only its owner to enter it.

    Raises Misconfigured if the folder belongs to another user or contains a symbolic link, through which a file elsewhere would be
    overwritten. Raises OSError if the folder cannot be made.
    """
    path.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise errors.Misconfigured(f"{path} belongs to another user: give a folder of your own")
    if status.st_mode & 0o077:
        path.chmod(FOLDER_MODE)
    links = sorted(entry.name for entry in os.scandir(path) if entry.is_symlink())
    if links:
        raise errors.Misconfigured(f"{path / links[0]} is a link: put the file itself there, or give another folder")


def hide_from_git(path: Path) -> None:
    """Have git ignore all of a folder, unless its owner has said what to ignore there. Raises OSError."""
    with contextlib.suppress(FileExistsError), (path / ".gitignore").open("x", encoding="utf-8") as file:
        file.write("*\n")


def open_own(path: Path, flags: int, mode: str) -> IO[str]:
    """Open a file that only its owner may read; create it if it does not exist. Raises OSError, also for a symbolic link."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    return os.fdopen(descriptor, mode, encoding="utf-8")
