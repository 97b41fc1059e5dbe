"""Copies of the disks of guests that run: QEMU writes the disk as it was when the copy began, while the guest goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from compute.libvirt import binding
from compute.libvirt.connection import LibvirtConnection, code_of
from objects import errors

libvirt = binding.load_libvirt()

LOOK_INTERVAL_S = 0.2
"""Seconds between two looks whether a copy is complete, or was cancelled."""

ABORT_TRIES = 50
"""How often an earlier copy is looked for until it has ended."""


class LiveCopies:
    """Copies as backup jobs of libvirt. A guest has one job at a time; that of an agent that has died is ended first."""

    def __init__(self, connection: LibvirtConnection) -> None:
        self._connection = connection
        self._pause = threading.Event()

    def copy_disk(self, domain: Any, disk: Path, target: Path, cancel: threading.Event) -> None:
        """Copy a disk of the running guest into a new qcow2 file, with all that it takes from its base.

        Raises ``errors.TaskFailed``, also if the guest goes off meanwhile, or if ``cancel`` was set. The file is partial then.
        """
        self._end_earlier(domain)
        xml = _backup_xml(domain.XMLDesc(0), disk, target)
        with self._connection.errors_as(errors.TaskFailed, "copy the disk of the guest"):
            self._connection.ask_guest(lambda: domain.backupBegin(xml, None, 0), "copy the disk of the guest")
        while self._has_running_job(domain):
            if cancel.wait(LOOK_INTERVAL_S):
                self._end_earlier(domain)
                raise errors.TaskFailed("The copy of the disk was cancelled.")
        if not self._is_complete(domain):
            raise errors.TaskFailed("The copy of the disk has not ended well: the guest went off, or its host has no room.")

    def _end_earlier(self, domain: Any) -> None:
        for _ in range(ABORT_TRIES):
            if not self._has_running_job(domain):
                return
            try:
                self._connection.ask_guest(domain.abortJob, "end a copy of the disk")
            except libvirt.libvirtError as error:
                if code_of(error) != libvirt.VIR_ERR_OPERATION_INVALID:  # it has just ended
                    raise self._connection.translate_error(error, errors.TaskFailed, "end a copy of the disk") from error
            self._pause.wait(LOOK_INTERVAL_S)
        raise errors.TaskFailed("An earlier copy of the disk does not end.")

    def _has_running_job(self, domain: Any) -> bool:
        with self._connection.errors_as(errors.TaskFailed, "look after a copy of the disk"):
            return bool(domain.jobInfo()[0] not in _NO_JOB)

    def _is_complete(self, domain: Any) -> bool:
        with self._connection.errors_as(errors.TaskFailed, "look after a copy of the disk"):
            stats = domain.jobStats(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED)
        return bool(stats.get("type") == libvirt.VIR_DOMAIN_JOB_COMPLETED and stats.get("success", True))


_NO_JOB = (
    libvirt.VIR_DOMAIN_JOB_NONE,
    libvirt.VIR_DOMAIN_JOB_COMPLETED,
    libvirt.VIR_DOMAIN_JOB_FAILED,
    libvirt.VIR_DOMAIN_JOB_CANCELLED,
)


def _backup_xml(domain_xml: str, disk: Path, target: Path) -> str:
    """The request for a copy of one disk. Raises ``errors.TaskFailed`` if the guest does not have it."""
    backup = ElementTree.Element("domainbackup", {"mode": "push"})
    disks = ElementTree.SubElement(backup, "disks")
    is_known = False
    for element in ElementTree.fromstring(domain_xml).iterfind("devices/disk"):  # noqa: S314 - libvirt wrote it
        source, name = element.find("source"), element.find("target")
        if name is None:
            continue
        is_it = source is not None and source.get("file") == str(disk)
        attributes = {"name": name.get("dev", ""), "backup": "yes" if is_it else "no"}
        disk_element = ElementTree.SubElement(disks, "disk", attributes | ({"type": "file"} if is_it else {}))
        if is_it:
            is_known = True
            ElementTree.SubElement(disk_element, "target", {"file": str(target)})
            ElementTree.SubElement(disk_element, "driver", {"type": "qcow2"})
    if not is_known:
        raise errors.TaskFailed("The guest does not have its root disk.")
    return ElementTree.tostring(backup, encoding="unicode")
