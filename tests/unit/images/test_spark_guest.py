"""The guest of 512 bytes: what is committed of it, source and bytes, is the same."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from images import spark


@pytest.mark.skipif(not (shutil.which("as") and shutil.which("ld")), reason="binutils is not installed")
def test_the_bytes_are_those_of_the_source(tmp_path: Path) -> None:
    source, built = spark.CODE.with_suffix(".s"), tmp_path / "spark.img"
    subprocess.run(["as", "--32", "-o", tmp_path / "spark.o", source], check=True)
    link = ["ld", "-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary"]
    subprocess.run([*link, "-o", built, tmp_path / "spark.o"], check=True)

    assert built.read_bytes() == spark.CODE.read_bytes()


def test_the_disk_has_a_bootable_cylinder(tmp_path: Path) -> None:
    spark.write_disk(tmp_path / "disk")

    content = (tmp_path / "disk").read_bytes()
    assert len(content) == spark.DISK_BYTES >= 16 * 63 * 512  # as SeaBIOS counts: heads, sectors of a track, bytes
    assert content[510:512] == b"\x55\xaa"
    assert not any(content[512:])
