"""Ports of the loopback address for servers of our own."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 29_999
"""Below those that Linux gives to connections, one of which could take a port between our looking and the server's binding."""
TRIES = 200


def free() -> int:
    """A port on which nothing listens now. Raises OSError where none is found."""
    for _ in range(TRIES):
        port = random.randint(LOWEST, HIGHEST)
        if is_free(port):
            return port
    raise OSError(f"No free port was found on {HOST} between {LOWEST} and {HIGHEST}")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Servers bind this way too: a port whose last connections are still winding up is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
