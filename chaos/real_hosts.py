"""Hosts with real guests, which differ from each other in their libvirtd only: what QEMU runs, counted by uuid, and how it dies.

What is found here comes from processes and files, never from a libvirtd, which may be down or wrong.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from cli.standalone.demo.hosts import DiskWrites
from compute.driver import Guest
from compute.libvirt import qemu_img
from compute.libvirt.domain_xml import METADATA_NAMESPACE
from compute.libvirt.guest_files import ROOT_DISK
from compute.libvirt.kept_guest import KeptGuest
from compute.libvirt.private_daemon import PrivateDaemon
from deploy import processes
from deploy.local.options import CONFIG_DRIVES, INSTANCES, LIBVIRT
from deploy.server import KILL_TIMEOUT_S
from objects import errors, typed
from objects.task import Power

SECTOR_BYTES = 512
SAMPLE_SIZE = 4
"""Disks that one look reads: each takes a process."""
_UUID = re.compile(rb"-uuid\0([0-9a-f-]{36})\0")
_KEPT_GUEST_PATH = f".//{{{METADATA_NAMESPACE}}}*"


class RealHosts:
    """The hosts whose folders are in ``path``. ``cache``: where their daemons share what they learn about QEMU."""

    def __init__(self, path: Path, hosts: Sequence[str], cache: Path) -> None:
        self._path = path
        self.daemons = {host: PrivateDaemon(path / host / LIBVIRT, cache=cache) for host in hosts}
        self._turn = 0

    def start(self) -> None:
        """Start the daemons. Raises ``errors.Misconfigured`` if libvirt or QEMU is missing."""
        for daemon in self.daemons.values():
            daemon.start()

    # -- what there is ---------------------------------------------------------------------------------------------------------

    def running_guests(self) -> Mapping[str, Mapping[str, list[int]]]:
        """The QEMU processes by host and uuid. There must never be two of one uuid."""
        pids_by_host: dict[str, dict[str, list[int]]] = {host: defaultdict(list) for host in self.daemons}
        hosts = {os.fsencode(self._path / host / INSTANCES): host for host in self.daemons}
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended
                words = entry.read_bytes()
                if (uuid := _UUID.search(words)) is None or b"qemu" not in words.partition(b"\0")[0]:
                    continue
                for folder, host in hosts.items():
                    if folder + b"/" in words:
                        pids_by_host[host][uuid[1].decode()].append(int(entry.parent.name))
        return pids_by_host

    def guests_by_host(self) -> Mapping[str, Sequence[Guest]]:
        """Domains with their power, and processes without a domain. One that runs twice is there twice."""
        running = self.running_guests()  # before the definitions: a guest that is made meanwhile has one
        guests: dict[str, list[Guest]] = {}
        for host in self.daemons:
            defined = self._defined_guests(host)
            guests[host] = [_with_power(guest, guest.uuid in running[host]) for guest in defined.values()]
            for uuid, pids in running[host].items():
                extra = len(pids) - 1 if uuid in defined else len(pids)
                guests[host] += [defined.get(uuid, _unknown_guest(uuid, host))] * extra
        return guests

    def disks_by_host(self) -> Mapping[str, Sequence[str]]:
        return {host: sorted(folder.name for folder in self._disk_folders(host)) for host in self.daemons}

    def disk_fault(self, host: str, guest: Guest) -> str:
        return "" if self._disk_path(host, guest.uuid).exists() else "it has no disk"

    def written_disk(self, host: str, uuid: str) -> DiskWrites | None:
        """How often the guest spark has started from its disk."""
        guest = self._defined_guests(host).get(uuid) if host in self.daemons else None
        if guest is None:  # the image is read before the disk: a rebuild writes them the other way round
            return None
        starts = _count_starts(self._disk_path(host, uuid))
        return None if starts is None else DiskWrites(host, uuid, guest.image_id, starts)

    def sample_written(self) -> Iterator[DiskWrites]:
        every = [(host, uuid) for host, uuids in self.disks_by_host().items() for uuid in uuids]
        self._turn += 1
        for number in range(min(SAMPLE_SIZE, len(every))):
            host, uuid = every[(self._turn * SAMPLE_SIZE + number) % len(every)]
            if (written := self.written_disk(host, uuid)) is not None:
                yield written

    # -- how it dies -----------------------------------------------------------------------------------------------------------

    def cut_power(self, host: str) -> None:
        """The daemon and all guests end at once, and what was in memory is lost."""
        self.daemons[host].kill_daemon()
        for pids in self.running_guests()[host].values():
            for pid in pids:
                processes.end_process(pid, signal.SIGKILL, KILL_TIMEOUT_S)
        for drive in (self._path / host / CONFIG_DRIVES).glob("*"):
            drive.unlink(missing_ok=True)

    def restore_power(self, host: str) -> None:
        self.daemons[host].start()

    def hit_daemon(self, host: str, how: str, wait: Callable[[], object]) -> None:
        """``kill`` the daemon of a host and start it again, or ``stop`` it and let it go on, after ``wait``."""
        daemon = self.daemons[host]
        if how == "kill":
            daemon.kill_daemon()
            wait()
            daemon.start()
        elif (pid := daemon.daemon_pid) is not None:
            _hold_still(pid, wait)

    def hit_guest(self, host: str, how: str, wait: Callable[[], object]) -> None:
        """The same with the QEMU of one guest, which nobody starts again."""
        pids = [pid for uuid, guest_pids in sorted(self.running_guests()[host].items()) for pid in guest_pids]
        if not pids:
            return
        pid = pids[self._turn % len(pids)]
        if how == "kill":
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        else:
            _hold_still(pid, wait)

    # -- files -----------------------------------------------------------------------------------------------------------------

    def _disk_folders(self, host: str) -> Iterator[Path]:
        path = self._path / host / INSTANCES
        yield from (folder for folder in path.glob("*") if folder.is_dir())

    def _disk_path(self, host: str, uuid: str) -> Path:
        return self._path / host / INSTANCES / uuid / ROOT_DISK

    def _defined_guests(self, host: str) -> dict[str, Guest]:
        """The domains of a host, also such as are not complete, by uuid."""
        guests = {}
        for file in (self.daemons[host].folder / "etc/libvirt/qemu").glob("*.xml"):
            with contextlib.suppress(FileNotFoundError):  # it was undefined meanwhile
                if (guest := _guest_in(file.read_text())) is not None:
                    guests[guest.uuid] = guest
        return guests


def _guest_in(xml: str) -> Guest | None:
    try:
        element = ElementTree.fromstring(xml).find(_KEPT_GUEST_PATH)  # noqa: S314 - libvirt wrote it
    except ElementTree.ParseError:  # it is being written
        return None
    return None if element is None else typed.decode_json((element.text or "").encode(), KeptGuest).guest


def _with_power(guest: Guest, runs: bool) -> Guest:
    power = Power.ON if runs else guest.power if not guest.power.uses_disk else Power.OFF
    return msgspec.structs.replace(guest, power=power)


def _unknown_guest(uuid: str, host: str) -> Guest:
    name = "a process without a domain"
    return Guest(uuid=uuid, name=name, node=host, fence=0, attempt=0, builder="", vcpus=0, memory_mb=0, disk_gb=0)


def _count_starts(disk: Path) -> int | None:
    """The first two bytes of the second sector, also while QEMU has the disk; None: it cannot be read."""
    with tempfile.TemporaryDirectory() as folder:
        read = Path(folder) / "sectors"
        words = ["dd", "-U", "-f", "qcow2", "-O", "raw", f"bs={SECTOR_BYTES}", "count=2", f"if={disk}", f"of={read}"]
        try:
            qemu_img.run(words)
        except errors.BuildFailed:
            return None
        content = read.read_bytes()
    return int.from_bytes(content[SECTOR_BYTES : SECTOR_BYTES + 2], "little")


def _hold_still(pid: int, wait: Callable[[], object]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            wait()
        finally:
            os.kill(pid, signal.SIGCONT)
