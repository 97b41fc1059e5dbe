"""Disk files of guests: made, copied and looked at with ``qemu-img``, always with the format named.

Untold, QEMU takes the format of a disk from its first bytes. A guest writes those bytes itself, and could name a file of the host
as its backing file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from objects import errors, typed
from objects.base import Object
from service.private_files import FILE_MODE

CANCEL_INTERVAL_S = 0.1
"""Seconds between two looks whether a long copy was cancelled."""

_QCOW2_HEADER = struct.Struct(">4sIQI")
_LONGEST_BACKING_NAME = 1023


class DiskInfo(Object, frozen=True, kw_only=True, rename="kebab"):
    """What ``qemu-img info`` says: bytes; of an overlay also the format of its base."""

    virtual_size: int
    backing_filename_format: str | None = None


def create(path: Path, size: int, *, disk_format: str = "qcow2") -> None:
    """Make an empty disk of ``size`` bytes. Raises ``errors.BuildFailed``."""
    _make_private(path)
    run(["create", "-q", "-f", disk_format, str(path), str(size)])


def create_overlay(path: Path, base: Path, base_format: str, size: int | None) -> None:
    """Make a disk whose contents are those of ``base`` until it is written to. ``size``: in bytes; None: that of the base."""
    _make_private(path)
    run(["create", "-q", "-f", "qcow2", "-b", str(base), "-F", base_format, str(path), *([str(size)] if size else [])])


def rebase_overlay(path: Path, base: Path, base_format: str) -> None:
    """Name another file as the base of an overlay. It must have the same contents."""
    run(["rebase", "-q", "-u", "-f", "qcow2", "-b", str(base), "-F", base_format, str(path)])


def resize_disk(path: Path, size: int) -> None:
    """Make a disk larger."""
    run(["resize", "-q", "-f", "qcow2", str(path), str(size)])


def flatten_disk(path: Path, target: Path, cancel: threading.Event | None = None) -> None:
    """Copy a disk with all that it takes from its base into one file."""
    _make_private(target)
    run(["convert", "-q", "-f", "qcow2", "-O", "qcow2", "-W", str(path), str(target)], cancel)


def read_info(path: Path) -> DiskInfo:
    """What the header of a qcow2 file says. Raises ``errors.BuildFailed``, also if a QEMU writes to the file."""
    try:
        return typed.decode_json(run(["info", "--output", "json", "-f", "qcow2", str(path)]).encode(), DiskInfo)
    except msgspec.MsgspecError as error:
        raise errors.BuildFailed(f"qemu-img info {path.name}: its answer cannot be read: {error}") from error


def backing_format(path: Path) -> str:
    """The format of an overlay's base. Raises ``errors.BuildFailed`` if the overlay does not name it."""
    named = read_info(path).backing_filename_format
    if not named:
        raise errors.BuildFailed(f"The disk {path} does not name the format of its base.")
    return named


def backing_file(path: Path) -> Path | None:
    """The base that a qcow2 file names, read from its header without starting a process; None if it has none."""
    try:
        with path.open("rb") as file:
            header = file.read(_QCOW2_HEADER.size)
            if len(header) < _QCOW2_HEADER.size:
                return None
            magic, _, offset, length = _QCOW2_HEADER.unpack(header)
            if magic != b"QFI\xfb" or not offset or not 0 < length <= _LONGEST_BACKING_NAME:
                return None
            file.seek(offset)
            return Path(file.read(length).decode(errors="surrogateescape"))
    except OSError:
        return None


def _make_private(path: Path) -> None:
    """Make the file with a mode that ``qemu-img`` leaves as it is. Raises ``errors.BuildFailed``."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE))
    except OSError as error:
        raise errors.BuildFailed(f"{path} cannot be made: {error.strerror}.") from error


def run(arguments: Sequence[str], cancel: threading.Event | None = None) -> str:
    """Run ``qemu-img`` and return its output. It is killed if this process dies, or once ``cancel`` is set.

    Raises ``errors.BuildFailed`` with what it said.
    """
    command = ["qemu-img", *arguments]
    if setpriv := shutil.which("setpriv"):  # else the copy of a dead agent would go on beside that of the next one
        command = [setpriv, "--pdeathsig", "KILL", "--", *command]
    try:
        process = subprocess.Popen(  # noqa: S603 - the words are ours, and paths
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except FileNotFoundError:
        raise errors.BuildFailed("qemu-img is not installed on this host: install qemu-utils.") from None
    with process:
        try:
            output, said = _wait_process(process, cancel)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
    if process.returncode:
        why = " ".join(said.split())[-300:] or f"it ended with status {process.returncode}"
        raise errors.BuildFailed(f"qemu-img {arguments[0]}: {why}")
    return output


def _wait_process(process: subprocess.Popen[str], cancel: threading.Event | None) -> tuple[str, str]:
    while True:
        try:
            return process.communicate(timeout=CANCEL_INTERVAL_S if cancel is not None else None)
        except subprocess.TimeoutExpired:
            if cancel is not None and cancel.is_set():
                raise errors.BuildFailed("The build was cancelled.") from None
