"""Connections that are passed through: to consoles of guests."""

from __future__ import annotations

import contextlib
import socket
import struct

SEND_TIMEOUT_S = 60
"""Seconds after which a send to a peer that takes nothing fails. A guest may never read its serial port."""
KEEP_ALIVE_IDLE_S = 30
"""Seconds of silence after which the system asks whether the peer is still there."""


def prepare_socket(connection: socket.socket) -> None:
    """Wait for data without a limit, but notice a peer that has gone or takes nothing. Small pieces are sent at once."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_IDLE_S)


def shut_down(*connections: socket.socket) -> None:
    """End connections, so that threads which wait for them wake. Harmless for closed ones."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
