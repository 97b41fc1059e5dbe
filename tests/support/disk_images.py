"""Disk images for tests, made from the headers of their formats. No guest boots from them."""

from __future__ import annotations

import random
import struct

MIB = 1 << 20
_HEADER_SIZE = 512


def qcow2(
    size: int = 200_000,
    *,
    virtual_size: int = MIB,
    seed: int = 1,
    version: int = 3,
    backing_file: str = "",
    features: int = 0,
    crypt_method: int = 0,
) -> bytes:
    """A file of ``size`` bytes that begins as a qcow2 file. Bit 2 of ``features``: its data are in another file."""
    name = backing_file.encode()
    place = 256 if name else 0
    head = struct.pack(">4sIQIIQI", b"QFI\xfb", version, place, len(name), 16, virtual_size, crypt_method)
    head = head.ljust(72, b"\0") + struct.pack(">Q", features)
    head = head.ljust(256, b"\0") + name
    return (head.ljust(_HEADER_SIZE, b"\0") + random.Random(seed).randbytes(max(0, size - _HEADER_SIZE)))[:size]


def vmdk_descriptor(path: str) -> bytes:
    """The text of a VMDK disk whose data are in another file."""
    return f'# Disk DescriptorFile\nversion=1\ncreateType="monolithicFlat"\nRW 2048 FLAT "{path}" 0\n'.encode()
