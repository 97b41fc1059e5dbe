"""Look into a file: which format it has, and whether a host can safely open it as a disk.

A qcow2 file may name other files: its backing file, or one with its data. A hypervisor opens these too, so a guest could read any
file of its host. So every image is inspected before anything opens it as a disk: when an operator adds it, and when a host has
downloaded it. From then on its format is named explicitly and never probed.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Literal

from oslo_utils.imageutils import format_inspector

from objects import errors
from objects.base import INT64_MAX, Object

HEAD_SIZE = 1 << 20
"""Bytes of a file's head that are inspected: by then every format shows its mark. A VMDK descriptor must be in one piece."""
_HEADER_SIZE = 512
_CRYPT_METHOD = slice(32, 36)
"""The field of a qcow2 header. The library does not look at it."""

_PLAIN = {"raw", "gpt", "iso"}
"""Formats of the library that are raw for a hypervisor: partition tables and file systems are the guest's business."""
_REASONS = {
    "backing_file": "it has a backing file",
    "data_file": "its data are in another file",
    "unknown_features": "it has features of qcow2 that are not supported",
}

logging.getLogger(format_inspector.__name__).setLevel(logging.CRITICAL)  # it logs what we raise


class Inspected(Object, frozen=True, kw_only=True):
    """What a file is. ``virtual_size``: bytes of the disk that a guest sees."""

    disk_format: Literal["raw", "qcow2"]
    virtual_size: int


def inspect_file(file: Path, declared: str | None = None) -> Inspected:
    """Read the head of a file. ``declared``: the format that it is said to have.

    Raises errors.Invalid for any format but raw and qcow2, a file that is not safe or encrypted, and one of another format than
    declared. Raises OSError if it cannot be read.
    """
    with file.open("rb") as opened:
        head, size = opened.read(HEAD_SIZE), os.fstat(opened.fileno()).st_size
    if not size:
        raise errors.Invalid("The image is empty.")
    qcow2 = _inspect_qcow2(head)
    detected: Literal["raw", "qcow2"] = "raw" if qcow2 is None else "qcow2"
    if declared is not None and declared != detected:
        raise errors.Invalid(f"The image has the format {detected}, but {declared} is declared.")
    if qcow2 is None:
        return Inspected(disk_format="raw", virtual_size=size)
    _check_safe(qcow2)
    return Inspected(disk_format="qcow2", virtual_size=qcow2.virtual_size)


def _inspect_qcow2(head: bytes) -> format_inspector.FileInspector | None:
    """The inspector of a qcow2 head; None for one that is raw."""
    # Line ends fill up a short head: the library takes one of less than a whole header for raw, and a VMDK descriptor is text.
    padded = head.ljust(_HEADER_SIZE, b"\n")
    wrapper = format_inspector.InspectWrapper(iter([padded]))  # type: ignore[arg-type]  # it iterates over what it wraps
    try:
        for _ in wrapper:
            pass
        formats = [inspector for inspector in wrapper.formats or () if inspector.NAME not in _PLAIN]
    except (format_inspector.ImageFormatError, AttributeError):  # of its search in text that begins like a VMDK descriptor
        raise errors.Invalid("The format of the image cannot be recognised.") from None
    if not formats:
        return None
    names = sorted(inspector.NAME for inspector in formats)
    if names != ["qcow2"]:
        raise errors.Invalid(f"The image has the format {' and '.join(names)}: convert it to qcow2 or raw with qemu-img.")
    return formats[0]


def _check_safe(qcow2: format_inspector.FileInspector) -> None:
    try:
        qcow2.safety_check()
    except format_inspector.SafetyCheckFailed as error:
        reasons = ", ".join(_REASONS.get(name, name) for name in sorted(error.failures))
        raise errors.Invalid(f"The image is not safe: {reasons}. Convert it with qemu-img into a file of its own.") from None
    if any(qcow2.region("header").data[_CRYPT_METHOD]):
        raise errors.Invalid("The image is encrypted: decrypt it with qemu-img.")
    if not 0 < qcow2.virtual_size <= INT64_MAX:
        raise errors.Invalid(f"The image has a virtual size of {qcow2.virtual_size} bytes.")
