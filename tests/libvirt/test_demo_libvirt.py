"""``superconductor demo --driver libvirt`` comes to its verdict, and leaves nothing that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.app import main
from compute.libvirt.private_daemon import PrivateDaemon


def test_real_guests_come_to_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "demo"

    status = main(["demo", "--driver", "libvirt", "--state", str(state)])

    said = capsys.readouterr().out
    assert status == 0, said
    assert "All 7 steps came as they must" in said
    for host in ("cell1-host1", "cell1-host2"):
        daemon = PrivateDaemon(state / "hosts" / host / "libvirt")
        assert (daemon.daemon_pid, daemon.guest_pids()) == (None, {})
    assert main(["demo", "--driver", "libvirt", "--state", str(state)]) != 0
    assert "needs a new folder" in capsys.readouterr().err
