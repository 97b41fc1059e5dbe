"""A host with a libvirtd of its own for a test: started, and gone with its guests afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from compute.libvirt import binding
from compute.libvirt.private_daemon import PrivateDaemon, find_programs, link_folder
from deploy import processes
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
        binding.load()
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
    (daemon.folder / OWNER).write_text(f"{os.getpid()}\n{processes.started(os.getpid())}")
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop(guests=True)
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> list[Path]:
    """Stop the daemons and guests of tests whose process was killed. Their folders."""
    swept = []
    for link in link_folder().glob("*"):
        with contextlib.suppress(OSError, ValueError):
            folder = link.readlink()
            pid, started = (folder / OWNER).read_text().split("\n")
            if processes.started(int(pid)) != started:
                PrivateDaemon(folder).stop(guests=True)
                swept.append(folder)
    return swept
