"""Connections to the serial port and to the screen of a guest, for users.

Neither listens on a network. The serial port is a pseudo-terminal of the host. The screen's connection comes from libvirt, which
passes one end of a pair of sockets to QEMU.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import Any
from xml.etree import ElementTree

from compute.libvirt import binding
from compute.libvirt.connection import LibvirtConnection
from compute.libvirt.domains import Domains
from objects import errors
from objects.console import ConsoleKind
from service.threads import start_daemon

libvirt = binding.load_libvirt()

BUFFER_SIZE = 4096
"""Bytes in each direction that wait for whoever takes them."""


class GuestConsoles:
    """The consoles of the guests of one host. Every method raises ``errors.HypervisorDown`` if there is no connection."""

    def __init__(self, connection: LibvirtConnection, domains: Domains, host: str) -> None:
        self._connection = connection
        self._domains = domains
        self._host = host

    def check_console(self, uuid: str, kind: ConsoleKind) -> None:
        """Raises what ``ComputeDriver.check_console`` does."""
        self._find_device(uuid, kind)

    def connect_console(self, uuid: str, kind: ConsoleKind) -> socket.socket:
        """A connection to this console. Raises what ``ComputeDriver.connect_console`` does."""
        domain, device = self._find_device(uuid, kind)
        if kind is ConsoleKind.VNC:
            return self._connect_screen(domain)
        try:
            terminal = os.open(_path_of(device), os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError as error:
            raise errors.Conflict(f"The serial port of instance {uuid} cannot be opened: {error.strerror}.") from error
        ours, theirs = socket.socketpair()
        if start_daemon(f"serial-{uuid}", _pass_on, terminal, theirs) is None:
            os.close(terminal)
            raise errors.Conflict(f"The serial port of instance {uuid} cannot be opened: its host has no room for a thread.")
        return ours

    def _connect_screen(self, domain: Any) -> socket.socket:
        def open_graphics() -> int:
            return int(domain.openGraphicsFD(0, libvirt.VIR_DOMAIN_OPEN_GRAPHICS_SKIPAUTH))

        with self._connection.errors_as(errors.Conflict, "connect to the screen of the guest"):
            return socket.socket(fileno=self._connection.ask_guest(open_graphics, "connect to the screen of the guest"))

    def _find_device(self, uuid: str, kind: ConsoleKind) -> tuple[Any, ElementTree.Element]:
        """The domain of a guest that runs, and the device."""
        domain = self._domains.find_domain(uuid)
        if domain is None or not self._domains.is_spawned(domain):
            raise errors.NotFound(f"Host {self._host} has no guest of instance {uuid}.")
        with self._connection.errors_as(errors.Conflict, "read the definition of the guest"):
            if not domain.isActive():
                raise errors.Conflict(f"The guest of instance {uuid} does not run.")
            xml = self._connection.ask_guest(domain.XMLDesc, "read the definition of the guest")
        which = "graphics[@type='vnc']" if kind is ConsoleKind.VNC else "serial[@type='pty']"
        device = ElementTree.fromstring(xml).find(f"devices/{which}")  # noqa: S314 - libvirt wrote it
        if device is None:
            raise errors.NotOffered(
                f"The guest of instance {uuid} has no {'screen' if kind is ConsoleKind.VNC else 'serial port'}."
            )
        return domain, device


def _path_of(device: ElementTree.Element) -> str:
    source = device.find("source")
    return "" if source is None else source.get("path", "")


def _pass_on(terminal: int, user: socket.socket) -> None:
    """Until the guest or the user has gone."""
    try:
        with user, contextlib.suppress(OSError):  # EIO: QEMU has closed the terminal
            user.setblocking(False)
            _copy_both_ways(terminal, user)
    finally:
        os.close(terminal)


def _copy_both_ways(terminal: int, user: socket.socket) -> None:
    """Both ways in one thread: a terminal gives no end of file to a second one that reads it."""
    from_guest, from_user = b"", b""
    poll = select.poll()
    while True:
        poll.register(terminal, (0 if from_guest else select.POLLIN) | (select.POLLOUT if from_user else 0))
        poll.register(user, (0 if from_user else select.POLLIN) | (select.POLLOUT if from_guest else 0))
        ready = dict(poll.poll())
        if (ready.get(terminal, 0) | ready.get(user.fileno(), 0)) & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
            return
        if ready.get(user.fileno(), 0) & select.POLLOUT:
            from_guest = from_guest[user.send(from_guest) :]
        elif ready.get(terminal, 0) & select.POLLIN:
            from_guest = os.read(terminal, BUFFER_SIZE)
        if ready.get(terminal, 0) & select.POLLOUT:
            from_user = from_user[os.write(terminal, from_user) :]
        elif ready.get(user.fileno(), 0) & select.POLLIN:
            from_user = user.recv(BUFFER_SIZE)
            if not from_user:
                return
