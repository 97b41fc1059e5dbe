"""Buses for tests: fresh embedded ones, a scratch virtual host of a real RabbitMQ where there is one, and a proxy that fails."""

from __future__ import annotations

import atexit
import contextlib
import socket
import threading
import uuid
from collections.abc import Iterator
from urllib.parse import quote, unquote, urlsplit

import pytest

from objects.context import RequestContext
from tests.support import vhosts
from tests.support.scratch import new_name
from tests.support.servers import RABBIT, give_up, is_ruled_out, url_of_server

CONTEXT = RequestContext(request_id="req-test", project_id="p", user_id="u")

BATCHES = (4, 12)
"""Virtual hosts that are made at once, the first time and later: most of the time is spent starting the tool, not making them."""


def embedded_url() -> str:
    """The URL of an embedded bus that nobody else uses."""
    return f"embedded://{uuid.uuid4().hex}/"


@contextlib.contextmanager
def rabbit_url() -> Iterator[str]:
    """The URL of a virtual host that no other test has used, on the RabbitMQ of this run or else of this machine.

    It is removed some time after the test that used it. Raises LookupError, which says why, where a developer has none; a test
    that was told to use one by SC_TEST_RABBIT_URL fails.
    """
    if is_ruled_out(RABBIT):
        raise LookupError("this run has no RabbitMQ")
    server = urlsplit(url_of_server(RABBIT))
    try:
        vhost = _VHOSTS.take(unquote(server.username or "guest"), (server.hostname or "", server.port or 5672))
    except LookupError as why:
        with contextlib.suppress(pytest.skip.Exception):
            give_up(RABBIT, str(why))
        raise
    try:
        yield server._replace(path=f"/{quote(vhost, safe='')}").geturl()
    finally:
        _VHOSTS.give_back(vhost)


class _Vhosts:
    """Virtual hosts made ahead, each for one test. Used ones go when new ones are made: hundreds would slow a broker down."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: list[str] = []
        self._used: list[str] = []
        self._made: set[str] = set()

    def take(self, user: str, address: tuple[str, int]) -> str:
        with self._lock:
            if not self._ready:
                if not answers(address):
                    raise LookupError(f"no RabbitMQ answers at {address[0]}:{address[1]}")
                if not self._made:
                    atexit.register(self.remove)
                batch = [new_name() for _ in range(BATCHES[min(len(self._made), 1)])]
                self._made.update(batch)  # even if the making fails half-way
                vhosts.create(batch, user)
                self._forget_used()
                self._ready += batch
            return self._ready.pop()

    def _forget_used(self) -> None:
        with contextlib.suppress(LookupError):  # they are tried again with the others, at the end
            vhosts.delete(self._used)
            self._made.difference_update(self._used)
            self._used.clear()

    def give_back(self, vhost: str) -> None:
        with self._lock:
            self._used.append(vhost)

    def remove(self) -> None:
        with contextlib.suppress(LookupError):
            vhosts.delete(sorted(self._made))


_VHOSTS = _Vhosts()


def answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=1).close()
    except OSError:
        return False
    return True


def silent_listener() -> socket.socket:
    """A socket that lets clients connect and never says a word, as a frozen broker does. Its address: ``getsockname()``."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    return listener


class FaultProxy:
    """A TCP proxy in front of a service, to cut it off (connections reset, new ones refused) or freeze it (nothing moves).

    Muted, only what the service says is held back; deafened, only what it is told.
    """

    def __init__(self, target_url: str) -> None:
        parts = urlsplit(target_url)
        self.target_url = target_url
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5672)
        self._lock = threading.Lock()
        self._asks = threading.Event()
        self._answers = threading.Event()
        self.thaw()
        self._sockets: list[socket.socket] = []
        self._listener = self._listen(0)

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        """The target's URL with the proxy's address in it."""
        parts = urlsplit(self.target_url)
        user, _, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}@127.0.0.1:{self.port}").geturl()

    def freeze(self) -> None:
        self._asks.clear()
        self._answers.clear()

    def mute(self) -> None:
        self._answers.clear()

    def deafen(self) -> None:
        self._asks.clear()

    def thaw(self) -> None:
        self._asks.set()
        self._answers.set()

    def cut(self) -> None:
        with self._lock:
            # shutdown() before close(): the thread blocked in accept() would keep the port open
            for open_socket in (self._listener, *self._sockets):
                with contextlib.suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)
                open_socket.close()
            self._sockets.clear()

    def restore(self) -> None:
        self._listener = self._listen(self._port)

    def close(self) -> None:
        self.cut()
        self.thaw()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        self._port: int = listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                service = socket.create_connection(self._target)
            except OSError:
                return
            with self._lock:
                self._sockets += (client, service)
            for source, sink, flowing in ((client, service, self._asks), (service, client, self._answers)):
                threading.Thread(target=self._pump, args=(source, sink, flowing), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, flowing: threading.Event) -> None:
        try:
            while data := source.recv(65536):
                flowing.wait()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


def url_of(kind: str) -> Iterator[str]:
    """For fixtures that run a test on each kind of bus: yield the URL of one, or skip."""
    if kind == "embedded":
        yield embedded_url()
        return
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(rabbit_url())
        except LookupError as why:
            pytest.skip(str(why))
        yield url


KINDS = ("embedded", "rabbit")
