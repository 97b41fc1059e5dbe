"""The server before the application, on real sockets: framing, slow clients, many connections, and what health says of them."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import requests
from waitress import wasyncore

from api.http.http_server import ConnectionLimits, HttpServer, parse_networks
from api.main import ApiService
from api.opts import ApiSettings
from objects import errors
from tests.support.api import Front, serve_http

QUICK = ConnectionLimits(threads=2, header_timeout=0.5, body_timeout=0.5, answer_timeout=0.5)
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE = 60
"""Seconds that a test waits for an answer or for the end of a connection."""


class Door:
    """A server with an application that answers with its path, or waits where it is asked to."""

    def __init__(self, limits: ConnectionLimits) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.go_on = threading.Event()
        self._sockets: dict[int, Any] = {}
        self.begun_at = time.monotonic()
        self.server = HttpServer(self._answer, self._sockets, listener, limits)
        self._ending = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        self.begun_at = time.monotonic()
        path = environ["PATH_INFO"]
        if path == "/wait":
            self.go_on.wait(PATIENCE)
        body = b"x" * 8_000_000 if path == "/large" else f"{path} {environ['SERVER_NAME']}".encode() + environ["wsgi.input"].read()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    def _serve(self) -> None:
        while not self._ending:
            wasyncore.loop(timeout=0.05, use_poll=True, map=self._sockets, count=1)
            self.server.record_load(time.monotonic())

    @property
    def connections(self) -> int:
        """How many are open."""
        active: Any = self.server.active_channels
        return len(active)

    def connect(self, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        made = socket.create_connection(self.address, timeout=PATIENCE, source_address=(source, 0))
        made.sendall(sent)
        return made

    def close(self) -> None:
        self.go_on.set()
        self._ending = True
        self._thread.join()
        self.server.task_dispatcher.shutdown()
        wasyncore.close_all(self._sockets, ignore_all=True)


@contextlib.contextmanager
def door(limits: ConnectionLimits = QUICK) -> Iterator[Door]:
    made = Door(limits)
    try:
        yield made
    finally:
        made.close()


def everything(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(65536):
            found += more
    return found


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def ask(connection: socket.socket, request: bytes = GET) -> bytes:
    """The first line of the answer."""
    return exchange(connection, request).partition(b"\r\n")[0]


def exchange(connection: socket.socket, request: bytes) -> bytes:
    """The whole answer of a connection that is kept."""
    connection.sendall(request)
    with connection.makefile("rb") as answer:
        head = b"".join(iter(answer.readline, b"\r\n"))
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return head + answer.read(length)


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"0\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"content-length:5\r\nTRANSFER-ENCODING:CHUNKED\r\n",
        b"Content-Length: 5\r\nTransfer_Encoding: chunked\r\n",
        b"Content_Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding:\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding:\r\n chunked\r\n",
        b"Transfer-Encoding:\r\n chunked\r\n",
        b"Transfer-Encoding:\r\n\tchunked\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding: \r\n",
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"X-A: b\r\n folded\r\n",
    ],
)
def test_ambiguous_framing_ends_the_connection(headers: bytes) -> None:
    with door() as made, made.connect(POST + headers + b"\r\n" + CHUNKED + SMUGGLED) as connection:
        answers = everything(connection)
    assert status(answers) == 400
    assert answers.count(b"HTTP/1.") == 1
    assert b"smuggled" not in answers


def test_an_encoding_with_http_1_0_is_refused() -> None:
    with door() as made, made.connect(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED) as connection:
        assert status(everything(connection)) == 400


@pytest.mark.parametrize(
    "headers", [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
)
def test_either_framing_alone_is_served(headers: bytes) -> None:
    with door() as made, made.connect() as connection:
        for _ in range(2):
            answer = exchange(connection, POST + headers)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.endswith(b"/ 127.0.0.1hello")


@pytest.mark.parametrize("path", ["/a%2fb", "/a%2Fb", "/a%5cb", "/a/../b", "/a/./b", "/..", "/%2e%2e/b", "/a/%2E", "/.%2e/"])
def test_a_path_that_others_read_otherwise_is_refused(path: str) -> None:
    with door() as made, made.connect(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()) as connection:
        assert status(everything(connection)) == 400


@pytest.mark.parametrize("path", ["/", "/v2.1/servers", "/v2.1/a.b/..c/d..", "/?a=%2f/../"])
def test_other_paths_pass(path: str) -> None:
    with door() as made, made.connect() as connection:
        assert ask(connection, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-A: b\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"GET /large HTTP/1.1\r\n\r\n",
    ],
)
def test_a_slow_client_is_disconnected(sent: bytes) -> None:
    """Also while it goes on sending a byte now and then."""
    with door() as made, made.connect(sent) as connection:
        until = time.monotonic() + PATIENCE
        while made.connections and time.monotonic() < until:
            with contextlib.suppress(OSError):
                connection.sendall(b"a" if sent and b"large" not in sent else b"")
            time.sleep(0.1)
        assert not made.connections


def test_an_idle_connection_stays_open() -> None:
    with door() as made, made.connect() as connection:
        for _ in range(3):
            assert ask(connection) == b"HTTP/1.1 200 OK"
            time.sleep(3 * QUICK.header_timeout)


def test_a_long_request_is_no_slow_client() -> None:
    with door() as made, made.connect(b"GET /wait HTTP/1.1\r\n\r\n") as connection:
        time.sleep(3 * QUICK.header_timeout)
        made.go_on.set()
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_connections_of_a_peer_are_limited() -> None:
    """Its newest ones are served; other peers, and trusted ones, are not concerned."""
    limits = ConnectionLimits(threads=2, max_connections_per_peer=5)
    with door(limits) as made, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(made.connect(b"GET / HT")) for _ in range(20)]
        assert ask(stack.enter_context(made.connect())) == b"HTTP/1.1 200 OK"
        assert ask(stack.enter_context(made.connect(source="127.0.0.2"))) == b"HTTP/1.1 200 OK"
        assert made.connections <= limits.max_connections_per_peer + 1
        assert slow[0].recv(1) == b""
    trusting = msgspec.structs.replace(limits, trusted_proxies=("127.0.0.0/30",))
    with door(trusting) as made, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(made.connect()) for _ in range(20)]
        assert [ask(connection) for connection in kept] == [b"HTTP/1.1 200 OK"] * 20


def test_a_trusted_proxy_without_address_is_refused() -> None:
    with pytest.raises(errors.Misconfigured, match="trusted_proxies"):
        parse_networks(["proxy.example.org"])


def test_health_reports_saturated_threads_and_connections() -> None:
    limits = ConnectionLimits(threads=2, max_connections=10)
    with door(limits) as made, contextlib.ExitStack() as stack:
        assert made.server.describe_overload(made.begun_at, late=0.2) == ""
        for _ in range(5):
            stack.enter_context(made.connect(b"GET /wait HTTP/1.1\r\n\r\n"))
        assert _told(made, "requests wait for one of 2 threads")
        made.go_on.set()
        assert _told(made, "")
        made.go_on.clear()
        for _ in range(20):
            with contextlib.suppress(OSError):
                stack.enter_context(made.connect(b"GET /wait HTTP/1.1\r\n\r\n"))
        assert _told(made, "all of 10 connections have a request under way", late=1000)


def _told(made: Door, text: str, late: float = 0.2) -> bool:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        said = made.server.describe_overload(made.begun_at, late)
        if (text in said) if text else not said:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def service(front: Front) -> Iterator[ApiService]:
    with serve_http(front, ApiSettings()) as service:
        yield service


def test_a_thousand_slow_connections_keep_nobody_out(service: ApiService) -> None:
    """Half a header each, from one address or from several."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("the machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    try:
        with contextlib.ExitStack() as stack:
            for number in range(1050):
                source = f"127.0.0.{2 + number % 3}"
                slow = socket.create_connection(("127.0.0.1", service.listen_port), timeout=PATIENCE, source_address=(source, 0))
                stack.enter_context(slow).sendall(b"GET /v2.1/flavors HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ")
            for _ in range(5):
                assert requests.get(f"http://127.0.0.1:{service.listen_port}/v2.1/flavors", timeout=PATIENCE).status_code == 200
                assert service.find_trouble() == ""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "path", ["/", "/v2.1", "/v2.1/servers", "/v2.1/servers/detail", "/v2.1/flavors", "/v2.1/flavors/1", "/v2.1/limits"]
)
def test_head_is_get_without_its_body(service: ApiService, path: str) -> None:
    url = f"http://127.0.0.1:{service.listen_port}{path}"
    with requests.Session() as session:
        head, get = session.head(url, timeout=PATIENCE), session.get(url, timeout=PATIENCE)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert head.headers["Content-Length"] == get.headers["Content-Length"]
        assert session.head(f"{url}/none/none", timeout=PATIENCE).status_code == 404
