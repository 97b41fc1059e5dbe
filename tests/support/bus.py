"""Buses for tests: fresh embedded ones, a scratch virtual host of a real RabbitMQ where there is one, and a proxy that fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from objects.context import RequestContext

CONTEXT = RequestContext(request_id="req-test", project_id="p", user_id="u")
RABBIT = ("127.0.0.1", 5672)


def embedded_url() -> str:
    """The URL of an embedded bus that nobody else uses."""
    return f"embedded://{uuid.uuid4().hex}/"


@contextlib.contextmanager
def rabbit_url() -> Iterator[str]:
    """The URL of a virtual host of its own on the RabbitMQ of this machine, removed at the end.

    SUPERCONDUCTOR_TEST_RABBIT_URL names a bus to use instead, as it is. Raises LookupError, which says why, where there is none.
    """
    given = os.environ.get("SUPERCONDUCTOR_TEST_RABBIT_URL")
    if given:
        yield given
        return
    if not answers(RABBIT):
        raise LookupError(f"no RabbitMQ answers at {RABBIT[0]}:{RABBIT[1]}")
    vhost = f"test-{uuid.uuid4().hex[:12]}"
    _rabbitmqctl("add_vhost", vhost)
    try:
        _rabbitmqctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        yield f"rabbit://guest:guest@{RABBIT[0]}:{RABBIT[1]}/{vhost}"
    finally:
        _rabbitmqctl("delete_vhost", vhost)


def answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=1).close()
    except OSError:
        return False
    return True


def _rabbitmqctl(*arguments: str) -> None:
    command = shutil.which("rabbitmqctl", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if command is None:
        raise LookupError("RabbitMQ answers, but there is no rabbitmqctl to make a virtual host with")
    done = subprocess.run([command, "-q", *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise LookupError(f"rabbitmqctl {arguments[0]} failed: {(done.stdout + done.stderr).strip()[:200]}")


def silent_listener() -> socket.socket:
    """A socket that lets clients connect and never says a word, as a frozen broker does. Its address: ``getsockname()``."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    return listener


class FaultProxy:
    """A TCP proxy in front of a service, to cut it off (connections reset, new ones refused) or freeze it (nothing moves)."""

    def __init__(self, target_url: str) -> None:
        parts = urlsplit(target_url)
        self.target_url = target_url
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5672)
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
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
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

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
            for source, sink in ((client, service), (service, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._flowing.wait()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


def url_of(kind: str) -> Iterator[str]:
    """For fixtures that run a test on either kind of bus: yield the URL of an ``embedded`` or a ``rabbit`` one, or skip."""
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
