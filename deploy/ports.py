"""Ports of the loopback address for servers of our own."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 29_999
"""Below those that Linux gives to connections, one of which could take a port between our looking and the server's binding."""
PORT_TRIES = 200

_CHANCE = random.SystemRandom()
"""Not the process's generator: programs that were started with one seed would choose the same ports."""

_reserved: set[int] = set()
"""Ports that this process was given before: whoever asked may not have bound them yet."""


def free_port() -> int:
    """A port on which nothing listens now, another one each time. Raises OSError where none is found."""
    for _ in range(PORT_TRIES):
        port = _CHANCE.randint(LOWEST, HIGHEST)
        if port not in _reserved and is_free(port):
            _reserved.add(port)
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
