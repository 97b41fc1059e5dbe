"""Tests with real guests: each has libvirtd and QEMU of its own, without KVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compute import drivers
from compute.libvirt.private_daemon import PrivateDaemon
from objects import errors
from tests.support import libvirt_host


@pytest.fixture(autouse=True, scope="session")
def _hypervisor() -> None:
    """Skip where this machine has no hypervisor."""
    if why := libvirt_host.why_missing():
        pytest.skip(why)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[PrivateDaemon]:
    """A host without guests."""
    with libvirt_host.private_daemon(tmp_path / "host") as daemon:
        yield daemon


@pytest.fixture
def real_driver() -> None:
    """Skip where the driver ``libvirt`` is not registered."""
    try:
        drivers.find("libvirt")
    except errors.Misconfigured as why:
        pytest.skip(str(why))
