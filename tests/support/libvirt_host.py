"""A host with a libvirtd of its own for a test: started, and gone with its guests afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

from compute.libvirt import binding
from compute.libvirt.private_daemon import PrivateDaemon, find_programs, link_folder
from deploy import processes
from images import spark
from objects import errors
from tests.support.servers import NONE

VARIABLE = "SC_TEST_LIBVIRT"
"""``none`` there: the tests that need a hypervisor skip."""
OWNER = "owner"
"""File in the folder of a test's daemon: the number of the test's process, and when it began."""


def why_missing() -> str:
    """Why this machine can run no guests for tests; empty if it can."""
    if os.environ.get(VARIABLE) == NONE:
        return f"{VARIABLE}={NONE} says to do without a hypervisor"
    try:
        find_programs()
        binding.load_libvirt()
    except errors.Misconfigured as why:
        return f"{why}; or run: make test STAGES=libvirt"
    return ""


def capability_cache() -> Path:
    """A folder that all test processes of this user share: the first daemon asks QEMU what it can do, which takes seconds."""
    return Path(tempfile.gettempdir()) / f"superconductor-libvirt-cache-{os.geteuid()}"


@contextlib.contextmanager
def private_daemon(folder: Path) -> Iterator[PrivateDaemon]:
    """A running daemon in ``folder``; at the end it, its guests and the folder are gone."""
    daemon = PrivateDaemon(folder, cache=capability_cache())
    daemon.folder.mkdir(parents=True, exist_ok=True)
    (daemon.folder / OWNER).write_text(f"{os.getpid()}\n{processes.start_time_of(os.getpid())}")
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop(guests=True)
        shutil.rmtree(folder, ignore_errors=True)


def spark_domain(name: str, folder: Path) -> str:
    """A domain with the guest spark; its disk and console are in the folder."""
    spark.write_disk(folder / f"{name}.raw")
    root = ET.Element("domain", type="qemu")
    ET.SubElement(root, "name").text = name
    ET.SubElement(root, "uuid").text = str(uuid.uuid4())
    ET.SubElement(root, "memory", unit="MiB").text = "16"
    ET.SubElement(ET.SubElement(root, "os"), "type", machine="pc").text = "hvm"
    ET.SubElement(ET.SubElement(root, "features"), "acpi")
    devices = ET.SubElement(root, "devices")
    disk = ET.SubElement(devices, "disk", type="file", device="disk")
    ET.SubElement(disk, "driver", name="qemu", type="raw")
    ET.SubElement(disk, "source", file=str(folder / f"{name}.raw"))
    ET.SubElement(disk, "target", dev="vda", bus="virtio")
    ET.SubElement(ET.SubElement(devices, "serial", type="file"), "source", path=str(folder / f"{name}.log"))
    return ET.tostring(root, encoding="unicode")


def sweep() -> list[Path]:
    """Stop the daemons and guests of tests whose process was killed. Their folders."""
    swept = []
    for link in link_folder().glob("*"):
        with contextlib.suppress(OSError, ValueError):
            folder = link.readlink()
            pid, started = (folder / OWNER).read_text().split("\n")
            if processes.start_time_of(int(pid)) != started:
                PrivateDaemon(folder).stop(guests=True)
                swept.append(folder)
    return swept
