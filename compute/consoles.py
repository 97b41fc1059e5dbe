"""The consoles of simulated guests. A guest that no task has changed has no file: its log is derived, so a boot writes none."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

from compute.disks import file_of
from compute.driver import Guest

FILE_LIMIT = 64 * 1024
"""Bytes after which a log keeps its last half."""
LINE_LIMIT = 4096
"""Bytes of a line that a serial console echoes."""


class Consoles:
    """The logs in one folder, a file per body, which the first task makes. One thread at a time changes the log of one body."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, guest: Guest, *lines: str) -> None:
        """Append these lines. ``guest``: as it was before, if there is no file yet."""
        file = file_of(self._path, guest.uuid)
        self._path.mkdir(exist_ok=True)
        new = b"".join(line.encode(errors="replace") + b"\n" for line in lines)
        if not file.exists():
            new = boot_lines(guest) + new
        elif file.stat().st_size > FILE_LIMIT:
            shortened = file.with_name(f"{file.name}.new")
            shortened.write_bytes(file.read_bytes()[-FILE_LIMIT // 2 :])
            shortened.replace(file)
        with file.open("ab") as log:
            log.write(new)

    def read(self, guest: Guest, max_bytes: int) -> bytes:
        """The last bytes of the log."""
        try:
            with file_of(self._path, guest.uuid).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - max_bytes))
                return log.read(max_bytes)
        except FileNotFoundError:
            return boot_lines(guest)[-max_bytes:]

    def remove_log(self, uuid: str) -> None:
        """Remove the log. An unknown uuid is no error."""
        file_of(self._path, uuid).unlink(missing_ok=True)


def boot_lines(guest: Guest) -> bytes:
    """What a guest writes when it is spawned; nothing if it is not to run."""
    if not guest.power.uses_disk:
        return b""
    first = f"{guest.name}: boots from image {guest.image_id or 'none'} on {guest.node}"
    return "".join(f"{line}\n" for line in (first, *boot_log(guest))).encode(errors="replace")


def boot_log(guest: Guest) -> list[str]:
    """The messages of a system that boots; the last line is ``NAME: ready``."""
    interfaces = [f"[    0.61] eth{number}: link up, {mac}" for number, mac in enumerate(guest.macs)]
    return [
        "[    0.00] Simulated guest, no kernel",
        f"[    0.00] DMI: Superconductor simulated, system UUID {guest.server_uuid or guest.uuid}",
        f"[    0.02] Memory: {guest.memory_mb} MiB",
        f"[    0.04] smp: brought up 1 node, {guest.vcpus} CPUs",
        f"[    0.31] vda: {guest.disk_gb} GiB",
        "[    0.35] Mounted root file system on vda1",
        "[    0.52] Serial console ttyS0 is up",
        "[    0.55] Entropy is sufficient",
        *interfaces,
        f"[    0.74] Hostname is {guest.name}",
        "[    0.93] Reached the last target",
        f"{guest.name}: ready",
    ]


def echo_console(guest: Guest) -> socket.socket:
    """A connection to the guest's serial console. It greets, and repeats each line with the guest's name before it."""
    ours, theirs = socket.socketpair()
    name = guest.name.encode(errors="replace")
    threading.Thread(target=_echo_lines, args=(theirs, name), name=f"console-{guest.uuid}", daemon=True).start()
    return ours


def _echo_lines(connection: socket.socket, name: bytes) -> None:
    """Until the other side closes it."""
    with connection, contextlib.suppress(OSError):
        connection.sendall(b"%b: serial console of a simulated guest\r\n" % name)
        line = b""
        while received := connection.recv(LINE_LIMIT):
            *lines, line = (line + received.replace(b"\r", b"\n")).split(b"\n")
            for line_part in filter(None, lines):
                connection.sendall(b"%b: %b\r\n" % (name, line_part[:LINE_LIMIT]))
            line = line[:LINE_LIMIT]
