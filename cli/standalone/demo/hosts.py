"""What runs and lies on the hosts of a deployment, read beside their agents: the other half of every verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from compute.disks import Disk, list_disks, read_disk
from compute.driver import Guest
from compute.journal import read_guests
from compute.simulated import cut_power, journal_path


class DiskWrites(NamedTuple):
    """What the guest of a body has written to its disk, as a number that only grows, and the image of the disk."""

    host: str
    uuid: str
    image_id: str | None
    writes: int


class HostFindings(Protocol):
    """The guests and disks of all hosts. It may be asked while agents run, and while they do not."""

    def guests_by_host(self) -> Mapping[str, Sequence[Guest]]:
        """The guests on each host with the power that they have now. One that runs twice is there twice."""
        ...

    def disks_by_host(self) -> Mapping[str, Sequence[str]]:
        """The uuids of the disks on each host, and the names of what is left of others."""
        ...

    def disk_fault(self, host: str, guest: Guest) -> str:
        """What is wrong with the disk of a guest; empty: nothing."""
        ...

    def written_disk(self, host: str, uuid: str) -> DiskWrites | None:
        """What is on the disk of this body; None: it has none, or it is being written."""
        ...

    def sample_written(self) -> Iterator[DiskWrites]:
        """What is on some of the disks; called again and again, on all of them."""
        ...

    def cut_power(self, host: str) -> None:
        """No guest of the host runs any more. Its agent must not run."""
        ...

    def restore_power(self, host: str) -> None:
        """The agent of the host may be started again."""
        ...


class SimulatedFindings:
    """Simulated hosts, whose journals and disks are in ``path``."""

    def __init__(self, path: Path, hosts: Sequence[str]) -> None:
        self._path = str(path)
        self._hosts = hosts

    def guests_by_host(self) -> Mapping[str, Sequence[Guest]]:
        return {host: read_guests(journal_path(self._path, host)) for host in self._hosts}

    def disks_by_host(self) -> Mapping[str, Sequence[str]]:
        return {host: list_disks(self._path, host) for host in self._hosts}

    def disk_fault(self, host: str, guest: Guest) -> str:
        disk = read_disk(self._path, host, guest.uuid)
        if disk is None:
            return "it has no disk"
        if disk.server_uuid != (guest.server_uuid or guest.uuid):
            return f"its disk is that of {disk.server_uuid}"
        return "its disk is a torn copy" if disk.torn else ""

    def written_disk(self, host: str, uuid: str) -> DiskWrites | None:
        disk = self._read_disk(host, uuid)
        return None if disk is None else DiskWrites(host, uuid, disk.image_id, disk.writes)

    def sample_written(self) -> Iterator[DiskWrites]:
        for host, uuids in self.disks_by_host().items():
            for uuid in uuids:
                if (written := self.written_disk(host, uuid)) is not None:
                    yield written

    def cut_power(self, host: str) -> None:
        cut_power(self._path, host)

    def restore_power(self, host: str) -> None:
        """Nothing is to be done."""

    def _read_disk(self, host: str, uuid: str) -> Disk | None:
        try:
            return read_disk(self._path, host, uuid)
        except (OSError, msgspec.MsgspecError):
            return None
