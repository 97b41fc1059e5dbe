"""A host with a libvirtd of its own for a test: started, and gone with its guests afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from compute.libvirt import binding
from compute.libvirt.private_daemon import PrivateDaemon, find_programs
from objects import errors


def why_missing() -> str:
    """Why this machine can run no guests for tests; empty if it can."""
    try:
        find_programs()
        binding.load()
    except errors.Misconfigured as why:
        return str(why)
    return ""


def capability_cache() -> Path:
    """A folder that all test processes of this machine share: the first daemon asks QEMU what it can do, which takes seconds."""
    return Path(tempfile.gettempdir()) / f"superconductor-libvirt-cache-{os.geteuid()}"


@contextlib.contextmanager
def private_daemon(folder: Path) -> Iterator[PrivateDaemon]:
    """A running daemon in ``folder``; at the end it, its guests and the folder are gone."""
    daemon = PrivateDaemon(folder, cache=capability_cache())
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop(guests=True)
        shutil.rmtree(folder, ignore_errors=True)
