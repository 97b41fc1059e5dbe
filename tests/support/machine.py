"""A machine with systemd: a root file system that ``systemd-nspawn`` boots, with the network of the host. Only for root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil

from service.periodic import wait_until

PATIENCE_S = 120.0
PROGRAMS = {"systemd-nspawn": "systemd-container"}
"""Programs that it needs, and Debian's packages of them."""


def add_systemd(root: Path) -> None:
    """Install systemd in a root file system of Debian."""
    install = "apt-get install -qq --yes --no-install-recommends systemd systemd-sysv dbus"
    command = f"apt-get update -qq && DEBIAN_FRONTEND=noninteractive {install}"
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    done = subprocess.run(["chroot", root, "sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Machine:
    """A machine that has booted. ``run`` types into it as root, in its folder ``/root``; the first failure ends it."""

    def __init__(self, root: Path, leader: int) -> None:
        self.root = root
        self._leader = leader

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Both outputs are in ``stdout``."""
        inside = ["nsenter", "--target", str(self._leader), "--mount", "--pid", "--uts", "--ipc", "--root", "--wd"]
        return subprocess.run(
            [*inside, "bash", "-e", "-o", "pipefail", "-c", f"cd /root\n{command}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"},
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


@contextlib.contextmanager
def booted(root: Path, folder: Path) -> Iterator[Machine]:
    """Boot the root file system; ``folder`` gets its log."""
    command = ["systemd-nspawn", f"--directory={root}", "--register=no", "--keep-unit", "--boot", "--console=pipe", "--quiet"]
    with (folder / "machine.log").open("wb") as log:
        container = subprocess.Popen(
            [*command, f"--machine=sc-{os.getpid()}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        own = psutil.Process(container.pid)
        assert wait_until(lambda: bool(own.children()), PATIENCE_S, 0.2), (folder / "machine.log").read_text()
        machine = Machine(root, own.children()[0].pid)
        assert wait_until(lambda: "running" in machine.run("systemctl is-system-running").stdout, PATIENCE_S, 0.5)
        yield machine
    finally:
        container.terminate()  # it shuts the machine down
        try:
            container.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            container.kill()
            container.wait()
