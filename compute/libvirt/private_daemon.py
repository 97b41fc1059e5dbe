"""A libvirtd of its own: an unprivileged daemon whose guests, sockets and settings are in one folder.

For trying out and for tests: several of them are several hosts on one machine. It needs neither systemd nor cgroups, and it leaves
the libvirt of the machine alone. As root it starts in a user namespace, because libvirtd run by root would use the folders of the
machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from compute.libvirt import binding
from objects import errors
from service import private_files
from service.periodic import wait_until

PACKAGES = ("libvirt-daemon", "qemu-system-x86", "qemu-utils")
"""Debian's packages of the programs, to be installed without what they recommend."""
PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

START_TIMEOUT_S = 60.0
"""Seconds until a started daemon accepts connections."""
STOP_TIMEOUT_S = 15.0
"""Seconds until a daemon or a guest that was asked to stop is killed."""
POLL_INTERVAL_S = 0.02

FIRST_MIGRATION_PORT, MIGRATION_PORTS, PORT_RANGES = 49152, 64, 200
"""Each daemon takes one of ``PORT_RANGES`` ranges of ports for live migrations, by its folder."""

DAEMON_CONF = """\
# Written by Superconductor at each start.
host_uuid = "{host_uuid}"
auth_unix_rw = "none"
log_outputs = "3:file:{log}"
"""
QEMU_CONF = """\
# Written by Superconductor at each start.
stdio_handler = "file"
cgroup_controllers = []
namespaces = []
security_driver = "none"
migration_port_min = {first_port}
migration_port_max = {last_port}
"""


class PrivateDaemon:
    """The daemon of ``folder``. One that another process has started there is the same.

    Its guests outlive it, and the next start finds them again. ``cache``: a folder in which several daemons share what they learn
    about QEMU, which takes seconds; None: each learns it.
    """

    def __init__(self, folder: Path, *, cache: Path | None = None) -> None:
        self.folder = folder.absolute()
        self._cache = (cache or self.folder / "capabilities").absolute()
        digest = hashlib.blake2b(bytes(self.folder), digest_size=4).hexdigest()
        # The path of a socket has 107 bytes at most, and libvirt adds up to 68 to the folder: it gets a short link.
        self._base = link_folder() / digest
        first = FIRST_MIGRATION_PORT + int(digest, 16) % PORT_RANGES * MIGRATION_PORTS
        self.migration_ports = range(first, first + MIGRATION_PORTS)
        self.host_uuid = str(uuid.uuid5(uuid.NAMESPACE_URL, self.folder.as_uri()))

    @property
    def connection_uri(self) -> str:
        """The connection URI for libvirt's clients."""
        return f"qemu+unix:///session?socket={self._socket_path}"

    @property
    def daemon_pid(self) -> int | None:
        """The running daemon; None: there is none."""
        return self._running_pid(self._base / "run/libvirtd.pid")

    @property
    def log_file(self) -> Path:
        return self.folder / "libvirtd.log"

    def guest_pids(self) -> dict[str, int]:
        """The processes of its running guests by domain name, also while the daemon is down."""
        pids = {file.stem: self._running_pid(file) for file in sorted(self.folder.glob("run/libvirt/qemu/run/*.pid"))}
        return {name: pid for name, pid in pids.items() if pid is not None and name != "driver"}

    def start(self) -> str:
        """Start the daemon unless it runs, wait until it accepts connections, and return its URI.

        Raises ``errors.Misconfigured`` if a program is missing or the daemon does not start; the text says what to do.
        """
        programs = find_programs()
        if self.daemon_pid is None:
            self._prepare_folder()
            self._launch_daemon(programs["libvirtd"])
        if not self._wait_accepting():
            raise errors.Misconfigured(f"libvirtd accepts no connections{self._last_error()}; its log is {self.log_file}")
        return self.connection_uri

    def stop(self, *, guests: bool = False) -> None:
        """Stop the daemon. ``guests``: its guests too, as if their power were cut. Idempotent."""
        if (pid := self.daemon_pid) is not None:
            self._end_process(pid, self._base / "run/libvirtd.pid")
        if guests:
            for name, pid in self.guest_pids().items():
                self._end_process(pid, self.folder / f"run/libvirt/qemu/run/{name}.pid")
            self._base.unlink(missing_ok=True)

    def kill_daemon(self) -> None:
        """Kill the daemon, as a crash would. Its guests keep running."""
        if (pid := self.daemon_pid) is not None:
            _signal_process(pid, signal.SIGKILL)
            wait_until(lambda: self.daemon_pid is None, STOP_TIMEOUT_S)

    @property
    def _socket_path(self) -> Path:
        return self._base / "run/libvirt/libvirt-sock"

    def _prepare_folder(self) -> None:
        private_files.own_folder(self.folder)
        for name in ("run", "etc/libvirt", "cache/libvirt/qemu/cache", "data"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._cache.mkdir(parents=True, exist_ok=True)
        _make_link(self.folder / "cache/libvirt/qemu/cache/capabilities", self._cache)
        _own_folder_of_links(self._base.parent)
        _make_link(self._base, self.folder)
        settings = self.folder / "etc/libvirt"
        (settings / "libvirtd.conf").write_text(DAEMON_CONF.format(host_uuid=self.host_uuid, log=self._base / self.log_file.name))
        ports = self.migration_ports
        (settings / "qemu.conf").write_text(QEMU_CONF.format(first_port=ports[0], last_port=ports[-1]))

    def _launch_daemon(self, program: Path) -> None:
        places = {
            "HOME": "",
            "XDG_RUNTIME_DIR": "run",
            "XDG_CONFIG_HOME": "etc",
            "XDG_CACHE_HOME": "cache",
            "XDG_DATA_HOME": "data",
        }
        environment = {name: str(self._base / place) for name, place in places.items()}
        environment |= {"PATH": os.pathsep.join((os.environ.get("PATH", ""), *PROGRAM_FOLDERS)), "LC_ALL": "C"}
        command = [str(program), "--daemon", "--pid-file", str(self._base / "run/libvirtd.pid")]
        if os.geteuid() == 0:
            command = ["unshare", "--user", "--map-user=1000", "--map-group=1000", *command]
        done = subprocess.run(  # noqa: S603 - the words are ours
            command, env=environment, cwd="/", capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode and self.daemon_pid is None:  # it runs if another process has started it meanwhile
            why = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            raise errors.Misconfigured(f"libvirtd does not start in {self.folder}: {why}; its log {self.log_file} may say more")

    def _wait_accepting(self) -> bool:
        """Whether it comes to accept connections, which it does once it has found its guests and asked QEMU what it can do."""
        libvirt = binding.load_libvirt()
        end = time.monotonic() + START_TIMEOUT_S
        while self.daemon_pid is not None and time.monotonic() < end:
            try:
                connection = libvirt.open(self.connection_uri)
                connection.getCapabilities()
                connection.close()
            except libvirt.libvirtError:
                time.sleep(POLL_INTERVAL_S)
            else:
                return True
        return False

    def _last_error(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        errors_found = [line.partition(" error : ")[2] for line in lines if " error : virStateInitialize" in line]
        return f" ({errors_found[-1]})" if errors_found else ""

    def _running_pid(self, pid_file: Path) -> int | None:
        """The process of this file, if it is still ours: its command line names this daemon's folder."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(pid_file.read_text())
            if bytes(self._base) in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    def _end_process(self, pid: int, pid_file: Path) -> None:
        _signal_process(pid, signal.SIGTERM)
        if not wait_until(lambda: self._running_pid(pid_file) != pid, STOP_TIMEOUT_S):
            _signal_process(pid, signal.SIGKILL)
            wait_until(lambda: self._running_pid(pid_file) != pid, STOP_TIMEOUT_S)


def link_folder() -> Path:
    """The folder in which each daemon of this user has a link to its own."""
    return Path(f"/tmp/sc-libvirt-{os.geteuid()}")  # noqa: S108 - only used if it is a folder of ours


def find_programs() -> Mapping[str, Path]:
    """The programs that a host with QEMU needs. Raises ``errors.Misconfigured`` that names Debian's packages."""
    folders = os.pathsep.join((os.environ.get("PATH", ""), *PROGRAM_FOLDERS))
    programs = {name: shutil.which(name, path=folders) for name in ("libvirtd", f"qemu-system-{platform.machine()}", "qemu-img")}
    if missing := [name for name, path in programs.items() if path is None]:
        command = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
        raise errors.Misconfigured(
            f"{', '.join(missing)} not found on this machine: install libvirt and QEMU; on Debian: {command}"
        )
    return {name: Path(path) for name, path in programs.items() if path is not None}


def _make_link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() != target:
        link.unlink()
    with contextlib.suppress(FileExistsError):
        link.symlink_to(target)


def _own_folder_of_links(folder: Path) -> None:
    """Make the folder of the short links. Raises ``errors.Misconfigured`` if somebody else could put links there."""
    folder.mkdir(mode=private_files.FOLDER_MODE, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise errors.Misconfigured(f"{folder} is not a folder that only this user may write: remove it")


def _signal_process(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
