"""A proxy before MariaDB that breaks connections in the moment of a COMMIT, once for each kind of transaction and way to break."""

from __future__ import annotations

import contextlib
import enum
import re
import socket
import struct
import threading
from collections.abc import Mapping
from urllib.parse import urlsplit

RESET = struct.pack("ii", 1, 0)
"""Of SO_LINGER: closing resets the connection."""
COMMIT = b"\x07\x00\x00\x00\x03COMMIT"
"""As PyMySQL sends it, alone: length, sequence number, kind of command, text."""
ROLLBACK = b"\x09\x00\x00\x00\x03ROLLBACK"


class Cut(enum.StrEnum):
    """When the connection breaks: its client cannot tell the two apart."""

    BEFORE = "the server never hears of the commit"
    AFTER = "the server has committed, and its answer is lost"


class CommitProxy:
    """Passes everything on until, once armed, a transaction commits that is one of ``kinds``: name -> what it says, as a pattern.

    The first such transaction is cut one way, the next one the other way, and all later ones are left alone. ``left`` says what has
    not been cut yet.
    """

    def __init__(self, target_url: str, kinds: Mapping[str, bytes]) -> None:
        parts = urlsplit(target_url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 3306)
        self._kinds = {name: re.compile(pattern, re.DOTALL) for name, pattern in kinds.items()}
        self._lock = threading.Lock()
        self.left: list[tuple[str, Cut]] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        user, _, _ = parts.netloc.rpartition("@")
        self.url = parts._replace(netloc=f"{user}@127.0.0.1:{self._listener.getsockname()[1]}").geturl()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self) -> None:
        """Begin to cut."""
        with self._lock:
            self.left = [(name, cut) for name in self._kinds for cut in Cut]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or the thread in accept() would keep the port open
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            _Passage(self, client, server).start()

    def decide(self, said: bytes) -> Cut | None:
        """How to cut the transaction in which this was said; None: not at all."""
        kind = next((name for name, pattern in self._kinds.items() if pattern.search(said)), None)
        with self._lock:
            found = next((each for each in self.left if each[0] == kind), None)
            if found is None:
                return None
            self.left.remove(found)
            return found[1]


class _Passage:
    """One connection through the proxy."""

    def __init__(self, proxy: CommitProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._swallow = threading.Event()
        """The next answer is that to a COMMIT, and the end."""

    def start(self) -> None:
        for pump in (self._ask, self._answer):
            threading.Thread(target=pump, daemon=True).start()

    def _ask(self) -> None:
        said = b""
        with contextlib.suppress(OSError):
            while data := self._client.recv(65536):
                if data == COMMIT:
                    cut = self._proxy.decide(said)
                    said = b""
                    if cut is Cut.BEFORE:
                        break
                    if cut is Cut.AFTER:
                        self._swallow.set()
                elif data == ROLLBACK:
                    said = b""
                else:
                    said += data
                self._server.sendall(data)
        if not self._swallow.is_set():
            self._end()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(65536):
                if self._swallow.is_set():
                    break
                self._client.sendall(data)
        self._end()

    def _end(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)
            end.close()
