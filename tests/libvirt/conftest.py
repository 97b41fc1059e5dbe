"""Tests with real guests: each has libvirtd and QEMU of its own, without KVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compute.libvirt.private_daemon import PrivateDaemon
from tests.support import libvirt_host

WHY_MISSING = libvirt_host.why_missing()


class SkippedModule(pytest.Module):
    """Tests that this machine has no hypervisor for. They are not imported: the driver cannot be without libvirt's binding."""

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip(WHY_MISSING, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return SkippedModule.from_parent(parent, path=module_path) if WHY_MISSING else None


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[PrivateDaemon]:
    """A host without guests."""
    with libvirt_host.private_daemon(tmp_path / "host") as daemon:
        yield daemon
