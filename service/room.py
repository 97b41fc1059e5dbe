"""Whether a folder has room for what is written next."""

from __future__ import annotations

import os

MIN_FREE_BYTES = 16 * 1024**2


def trouble_of(folder: str) -> str:
    """Why nothing more fits on the file system of this folder; empty if something does, or the folder is not there."""
    try:
        volume = os.statvfs(folder)
    except OSError:
        return ""  # whoever needs the folder says that
    free = volume.f_bavail * volume.f_frsize
    if volume.f_blocks and free < MIN_FREE_BYTES:
        return f"the disk of {folder} is full: {free // 1024**2} MiB are free"
    return f"the disk of {folder} has no room for another file" if volume.f_files and not volume.f_favail else ""
