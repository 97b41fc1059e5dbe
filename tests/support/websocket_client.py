"""A client of remote consoles."""

from __future__ import annotations

from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.support.cell_conductor import PATIENCE


def open_websocket(url: str, **options: Any) -> ClientConnection:
    """A connection to the URL of a console. Raises ``websockets.exceptions.InvalidStatus`` if it is refused."""
    return connect(url, proxy=None, open_timeout=PATIENCE, legacy=True, **options)


def read_until(console: ClientConnection, text: bytes) -> bytes:
    """What the console writes up to this text."""
    seen = b""
    while text not in seen:
        message = console.recv(PATIENCE)
        assert isinstance(message, bytes)
        seen += message
    return seen
