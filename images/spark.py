"""The guest ``spark``: a system of 512 bytes that shows a hypervisor at work. Its source is ``spark.s``."""

from __future__ import annotations

from pathlib import Path

NAME = "spark"
IMAGE_ID = "00000512-0000-4000-8000-000000000512"
"""Its id in the image store of a new ``standalone``."""
CODE = Path(__file__).with_name("spark.img")
"""Its bytes, the first sector of its disk."""
DISK_BYTES = 1 << 20
"""The size of its disk. SeaBIOS boots from a disk of one cylinder at least, which is 504 KiB."""
MEMORY_MB = 2
"""The memory that it needs."""


def write_disk(path: Path) -> None:
    """Write the disk image, in the format raw."""
    with path.open("wb") as file:
        file.write(CODE.read_bytes())
        file.truncate(DISK_BYTES)
