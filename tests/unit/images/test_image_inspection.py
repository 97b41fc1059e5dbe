"""Only raw and qcow2 files that name no other file are images."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from images.inspection import HEAD_SIZE, Inspected, inspect_file
from objects import errors
from tests.support.disk_images import MIB, qcow2, vmdk_descriptor

BOOT_SECTOR = bytes(510) + b"\x55\xaa"
LUKS = b"LUKS\xba\xbe\x00\x01".ljust(4096, b"\0")
ISO = bytes(32 * 1024) + b"\x01CD001\x01".ljust(2048, b"\0")
VDI = bytes(0x40) + (0xBEDA107F).to_bytes(4, "little") + bytes(512)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "image"


@pytest.mark.parametrize("content", [b"x", b"hello\n" * 500, bytes(HEAD_SIZE + 5), BOOT_SECTOR, ISO, b"\xff" * 100])
@pytest.mark.parametrize("declared", [None, "raw"])
def test_a_disk_plain_to_hypervisors_is_raw(file: Path, content: bytes, declared: str | None) -> None:
    file.write_bytes(content)

    assert inspect_file(file, declared) == Inspected(disk_format="raw", virtual_size=len(content))


@pytest.mark.parametrize("declared", [None, "qcow2"])
@pytest.mark.parametrize("version", [2, 3])
def test_a_qcow2_file_has_its_virtual_size(file: Path, version: int, declared: str | None) -> None:
    file.write_bytes(qcow2(virtual_size=7 * MIB, version=version))

    assert inspect_file(file, declared) == Inspected(disk_format="qcow2", virtual_size=7 * MIB)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (qcow2(backing_file="/etc/passwd"), "has a backing file"),
        (qcow2(backing_file="json:{}", version=2), "has a backing file"),
        (qcow2(backing_file="/etc/passwd")[:300], "has a backing file"),
        (qcow2(backing_file="/etc/passwd")[:100], "has a backing file"),
        (qcow2(features=1 << 2), "its data are in another file"),
        (qcow2(features=1 << 4), "features of qcow2 that are not supported"),
        (qcow2(version=1), "features of qcow2 that are not supported"),
        (qcow2(crypt_method=1, version=2), "is encrypted"),
        (qcow2(crypt_method=2), "is encrypted"),
        (qcow2(virtual_size=0), "virtual size of 0 bytes"),
        (qcow2(virtual_size=2**63), "virtual size of 9223372036854775808 bytes"),
        (qcow2()[:510] + b"\x55\xaa" + bytes(9), None),  # a boot sector's mark in the header of a qcow2 file: still qcow2
        (vmdk_descriptor("/etc/shadow"), "has the format vmdk"),
        (vmdk_descriptor("/etc/shadow").ljust(9000, b"\n"), "has the format vmdk"),
        (b"KDMV" + bytes(600), "has the format vmdk"),
        (LUKS, "has the format luks"),
        (b"QED\x00".ljust(512, b"\0"), "has the format qed"),
        (b"conectix".ljust(512, b"\0"), "has the format vhd"),
        (b"vhdxfile".ljust(512, b"\0"), "has the format vhdx"),
        (VDI, "has the format vdi"),
        (qcow2()[:0x40] + VDI[0x40:0x44] + qcow2()[0x44:], "has the format qcow2 and vdi"),
        (b"text\n" * 500 + b"\xff", "cannot be recognised"),
    ],
)
def test_a_file_that_could_reference_others_is_refused(file: Path, content: bytes, text: str | None) -> None:
    file.write_bytes(content)
    if text is None:
        assert inspect_file(file).disk_format == "qcow2"
        return
    for declared in (None, "raw", "qcow2"):
        with pytest.raises(errors.Invalid, match=text if declared is None else None):
            inspect_file(file, declared)


def test_a_file_of_an_undeclared_format_is_refused(file: Path) -> None:
    file.write_bytes(qcow2())
    with pytest.raises(errors.Invalid, match="has the format qcow2, but raw is declared"):
        inspect_file(file, "raw")
    file.write_bytes(bytes(600))
    with pytest.raises(errors.Invalid, match="has the format raw, but qcow2 is declared"):
        inspect_file(file, "qcow2")


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="qemu-img is not installed: no images of its own making")
def test_images_of_qemu_itself(tmp_path: Path) -> None:
    def create(name: str, *words: str) -> Path:
        subprocess.run(["qemu-img", "create", "-q", *words, name, "1M"], check=True, cwd=tmp_path)
        return tmp_path / name

    plain = Inspected(disk_format="qcow2", virtual_size=MIB)
    assert inspect_file(create("new", "-f", "qcow2")) == plain
    assert inspect_file(create("old", "-f", "qcow2", "-o", "compat=0.10")) == plain
    assert inspect_file(create("zstd", "-f", "qcow2", "-o", "compression_type=zstd")) == plain
    assert inspect_file(create("raw", "-f", "raw")) == Inspected(disk_format="raw", virtual_size=MIB)
    for words, text in (
        (("-f", "qcow2", "-b", "/etc/passwd", "-F", "raw"), "backing file"),
        (("-f", "qcow2", "-o", "data_file=elsewhere"), "another file"),
        (("-f", "vmdk"), "vmdk"),
        (("-f", "vmdk", "-o", "subformat=monolithicFlat"), "vmdk"),
        (("-f", "vhdx"), "vhdx"),
    ):
        with pytest.raises(errors.Invalid, match=text):
            inspect_file(create("unsafe", *words))
