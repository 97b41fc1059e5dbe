"""A libvirtd in system mode of its own, for tests of confinement: QEMU runs as another user than the agent. Only for root.

It is in a mount namespace in which the folders that libvirtd has compiled in are those of the test, so the machine's libvirt is
left alone. ``private_daemon`` is what other tests use.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from compute.libvirt import binding
from compute.libvirt.private_daemon import find_programs
from deploy import processes

QEMU_USER = "libvirt-qemu"
"""The user that Debian's libvirt-daemon-system makes for QEMU."""
FOLDERS = {
    "run": "/run/libvirt",
    "lib": "/var/lib/libvirt",
    "etc": "/etc/libvirt",
    "log": "/var/log/libvirt",
    "cache": "/var/cache/libvirt",
}
PATIENCE_S = 60.0


def why_no_system_daemon() -> str:
    """Why this machine cannot have one; empty if it can."""
    if os.geteuid() != 0:
        return "only root can start a libvirtd in system mode"
    try:
        pwd.getpwnam(QEMU_USER)
    except KeyError:
        packages = "libvirt-daemon-system libvirt-daemon-system-sysv"
        return f"there is no user {QEMU_USER}: apt-get install --no-install-recommends {packages}"
    return ""


class SystemDaemon:
    """The daemon of ``folder``, which QEMU's user must be able to enter, and whose path must be short."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"qemu+unix:///system?socket={folder}/run/libvirt-sock"

    @property
    def pid(self) -> int | None:
        return self._running(self.folder / "libvirtd.pid", b"libvirtd")

    def guest_pids(self) -> dict[str, int]:
        """The processes of its running guests, by domain name."""
        found = {file.stem: self._running(file, f"guest={file.stem},".encode()) for file in self.folder.glob("run/qemu/*.pid")}
        return {name: pid for name, pid in found.items() if pid is not None}

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        for name in FOLDERS:
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "etc/qemu").mkdir(exist_ok=True)
        conf = self.folder / "etc/libvirtd.conf"
        conf.write_text(
            f'host_uuid = "{uuid.uuid5(uuid.NAMESPACE_URL, self.folder.as_uri())}"\nauth_unix_rw = "none"\n'
            f'log_outputs = "3:file:{self.folder}/libvirtd.log"\n'
        )
        (self.folder / "etc/qemu.conf").write_text(
            f'user = "{QEMU_USER}"\ngroup = "{QEMU_USER}"\ndynamic_ownership = 1\nremember_owner = 0\nsecurity_driver = "none"\n'
            'stdio_handler = "file"\ncgroup_controllers = []\nnamespaces = []\n'
        )
        binds = "\n".join(f"mkdir -p {place} && mount --bind {self.folder / name} {place}" for name, place in FOLDERS.items())
        binds += "\n[ ! -e /dev/kvm ] || mount --bind /dev/null /dev/kvm"  # tests use no KVM, and asking for it takes seconds
        program = find_programs()["libvirtd"]
        script = f"set -e\n{binds}\nexec {program} --daemon --config {conf} --pid-file {self.folder / 'libvirtd.pid'}"
        subprocess.run(["unshare", "--mount", "sh", "-c", script], check=True, capture_output=True, cwd="/")
        assert processes.wait_until(self._accepts, PATIENCE_S), (self.folder / "libvirtd.log").read_text()

    def stop(self) -> None:
        """End it and its guests."""
        for pid in [pid for pid in (self.pid, *self.guest_pids().values()) if pid is not None]:
            processes.end_process(pid, signal.SIGTERM, PATIENCE_S)

    def _accepts(self) -> bool:
        libvirt = binding.load_libvirt()
        try:
            libvirt.open(self.uri).close()
        except libvirt.libvirtError:
            return False
        return True

    def _running(self, pid_file: Path, word: bytes) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            pid = int(pid_file.read_text())
            if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None


@contextlib.contextmanager
def system_daemon() -> Iterator[SystemDaemon]:
    """A running daemon in a folder of its own that every user may enter; at the end all of it is gone."""
    folder = Path(tempfile.mkdtemp(prefix="sc-system-", dir="/tmp"))
    folder.chmod(0o755)
    daemon = SystemDaemon(folder)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(folder)
