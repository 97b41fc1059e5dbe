"""The HTTP server in front of the application: waitress with strict framing, deadlines for slow clients and limits per peer.

This is the only file that derives from parts of waitress (``HTTPChannel``, ``TcpWSGIServer``, ``HTTPRequestParser``). ``setup.cfg``
pins the minor version, and ``tests/functional/api/test_http_door.py`` tests the behaviour that this relies on.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.task import ThreadedTaskDispatcher, WSGITask

from objects import errors
from objects.base import Object
from service.accepting import PausingServer

BACKLOG = 1024
"""Connections that the kernel queues until they are accepted."""
MAX_HEADER_BYTES = 65536
"""A token of an identity service may take a large part of it."""
MAX_BODY_BYTES = 8 * 1024 * 1024
"""Bytes that are read at most, before ``max_body_size`` refuses the request with the API's own message."""
CHECK_INTERVAL_S = 1
"""Seconds between two checks of the connections' deadlines."""
FULL_GRACE_S = 5.0
"""Seconds for which new connections may be closed before health checks report it."""

_AMBIGUOUS_PATH = re.compile(r"%2f|%5c|/(\.|%2e){1,2}(/|$)", re.IGNORECASE)
_FRAMING = (b"content-length", b"transfer-encoding")

Peers = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]


class ConnectionLimits(Object, frozen=True, kw_only=True):
    """The limits of one process. Times in seconds.

    ``header_timeout`` runs from a connection's start, or from the first byte of a later request, to the end of the headers.
    ``body_timeout`` runs from there to the end of the body; ``answer_timeout`` until the client has read the whole answer.
    ``trusted_proxies`` (addresses or networks) may open any number of connections.
    """

    threads: int = 8
    max_connections: int = 1000
    max_connections_per_peer: int = 500
    trusted_proxies: tuple[str, ...] = ()
    header_timeout: float = 10.0
    body_timeout: float = 60.0
    answer_timeout: float = 120.0


class Parser(HTTPRequestParser):
    """Refuses requests that a proxy in front might interpret differently, with 400 and a closed connection."""

    request_uri: str

    def parse_header(self, header_plus: bytes) -> None:
        first, *lines = header_plus.split(b"\r\n")
        _check_framing(first, lines)
        super().parse_header(header_plus)
        if _AMBIGUOUS_PATH.search(self.request_uri.partition("?")[0]):
            raise ParsingError("The path holds an encoded slash or a dot segment")


def _check_framing(first: bytes, lines: Sequence[bytes]) -> None:
    """Check the framing by RFC 9112, sections 5.2 and 6.1. Underscores in names count as dashes, because some proxies treat
    them so.
    """
    if any(line[:1] in (b" ", b"\t") for line in lines):
        raise ParsingError("A header is folded over several lines")
    named = [(name.strip().lower().replace(b"_", b"-"), value) for name, _, value in (line.partition(b":") for line in lines)]
    framing = [(name, value) for name, value in named if name in _FRAMING]
    if len(framing) > 1:
        raise ParsingError("Content-Length and Transfer-Encoding may be given only once, and not together")
    if framing and framing[0][0] == b"transfer-encoding":
        if first.rstrip().endswith(b"HTTP/1.0"):
            raise ParsingError("HTTP/1.0 has no Transfer-Encoding")
        if not framing[0][1].strip() or framing[0][1].lower().count(b"chunked") > 1:
            raise ParsingError("Transfer-Encoding is invalid")


class DoorTask(WSGITask):
    """Sets SERVER_NAME and SERVER_PORT to the address that the client has reached, as WSGI requires."""

    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        channel: Any = self.channel
        environ["SERVER_NAME"], environ["SERVER_PORT"] = channel.local_address
        return environ


class Channel(HTTPChannel):
    """A connection that records since when the server waits for its client."""

    parser_class = Parser
    task_class = DoorTask

    def __init__(self, server: Any, sock: Any, addr: Any, adj: Any, map: Any = None) -> None:
        super().__init__(server, sock, addr, adj, map=map)
        self.peer = str(addr[0])
        self.local_address = _address_of(sock)
        self._idle_since = time.monotonic()
        self._headers_since: float | None = self._idle_since
        self._body_since: float | None = None
        self._answer_since: float | None = None

    @property
    def is_served(self) -> bool:
        """Whether a complete request or its answer is under way."""
        return bool(self.requests) or bool(self.total_outbufs_len)

    @property
    def waits_since(self) -> float:
        """When the server began to wait for the request or the rest of it, in monotonic seconds."""
        return self._body_since or self._headers_since or self._idle_since

    def received(self, data: bytes) -> bool:
        now = time.monotonic()
        if self._headers_since is None:
            self._headers_since = now
        taken = bool(super().received(data))
        if not self.requests and self.request is not None and self.request.headers_finished:
            self._body_since = self._body_since or now
        return taken

    def service(self) -> None:
        """Answer the first complete request, in a thread of the pool."""
        self._headers_since = self._body_since = None
        super().service()
        self._idle_since = time.monotonic()

    def is_overdue(self, now: float, limits: ConnectionLimits) -> bool:
        """Whether the client has exceeded the time to send its headers or body, or to read the answer."""
        if self.requests:
            self._answer_since = None
            return False
        if self.total_outbufs_len:
            self._answer_since = self._answer_since or now
            return now - self._answer_since > limits.answer_timeout
        self._answer_since = None
        if self._body_since is not None:
            return now - self._body_since > limits.body_timeout
        return self._headers_since is not None and now - self._headers_since > limits.header_timeout


class HttpServer(PausingServer):
    """Accepts connections. At the limit it closes the connection that has waited longest without a complete request."""

    channel_class = Channel
    _map: dict[int, Any]

    def __init__(
        self, application: Callable[..., Any], sockets: dict[int, Any], listener: socket.socket, limits: ConnectionLimits
    ) -> None:
        self._limits = limits
        self._trusted = parse_networks(limits.trusted_proxies)
        self._full_since: float | None = None
        self._idle_at = time.monotonic()
        adjustments = Adjustments(
            sockets=[listener],
            threads=limits.threads,
            connection_limit=limits.max_connections,
            backlog=BACKLOG,
            ident=None,
            max_request_header_size=MAX_HEADER_BYTES,
            max_request_body_size=MAX_BODY_BYTES,
            cleanup_interval=CHECK_INTERVAL_S,
            asyncore_use_poll=True,
        )
        dispatcher = ThreadedTaskDispatcher()
        dispatcher.set_thread_count(limits.threads)
        socket_info = (listener.family, listener.type, listener.proto, listener.getsockname())
        super().__init__(
            application, sockets, True, listener, dispatcher=dispatcher, adj=adjustments, bind_socket=False, sockinfo=socket_info
        )

    def handle_accept(self) -> None:
        super().handle_accept()
        channels = self._channels_by_age()
        if channels and len(channels) > self._limits.max_connections_per_peer:
            peer = channels[-1].peer
            peer_channels = [channel for channel in channels if channel.peer == peer]
            if len(peer_channels) > self._limits.max_connections_per_peer and not self._is_trusted(peer):
                _close_one(peer_channels)
        if len(self._map) >= self._limits.max_connections:
            _close_one([channel for channel in channels if not channel.is_served])

    def maintenance(self, now: Any) -> None:
        """Close idle connections and those of clients that are too slow."""
        super().maintenance(now)
        moment = time.monotonic()
        for channel in self._channels_by_age():
            if channel.is_overdue(moment, self._limits):
                channel.handle_close()  # not will_close: that waits until the client reads
        self.record_load(moment)

    def record_load(self, now: float) -> None:
        """Record whether new connections would have to be closed, and whether requests wait for a thread."""
        at_limit = len(self._map) >= self._limits.max_connections - 1  # a new connection is closed before it reaches the limit
        full = at_limit and all(channel.is_served for channel in self._channels_by_age())
        self._full_since = (self._full_since or now) if full else None
        if not self.task_dispatcher.queue:
            self._idle_at = now

    @property
    def is_sending(self) -> bool:
        """Whether a client has not yet read its whole answer."""
        return any(channel.total_outbufs_len for channel in self._channels_by_age())

    def describe_overload(self, last_begun: float, late: float) -> str:
        """Why new requests wait longer than ``late`` seconds; empty if they do not. ``last_begun``: when the last one was
        begun.
        """
        now = time.monotonic()
        full = self._full_since
        if full is not None and now - full > FULL_GRACE_S:
            return f"all of {self._limits.max_connections} connections have a request under way since {now - full:.0f} s"
        waits = now - max(self._idle_at, last_begun)
        if waits > late:
            return f"{len(self.task_dispatcher.queue)} requests wait for one of {self._limits.threads} threads since {waits:.0f} s"
        return ""

    def _channels_by_age(self) -> list[Channel]:
        """The connections, oldest first."""
        active: Any = self.active_channels
        return list(active.values())

    def _is_trusted(self, peer: str) -> bool:
        if not self._trusted:
            return False
        address = ipaddress.ip_address(peer.partition("%")[0])
        return any(address in network for network in self._trusted)


def parse_networks(texts: Sequence[str]) -> Peers:
    """The addresses and networks of ``trusted_proxies``. Raises errors.Misconfigured."""
    try:
        return [ipaddress.ip_network(network, strict=False) for network in texts]
    except ValueError as error:
        raise errors.Misconfigured(f"[api] trusted_proxies: {error}; give addresses or networks such as 10.0.0.0/24") from error


def _close_one(channels: Sequence[Channel]) -> None:
    """Close the connection whose request the server has waited for longest; if all are being served, the newest."""
    waiting = [channel for channel in channels if not channel.is_served]
    if waiting:
        min(waiting, key=lambda channel: channel.waits_since).handle_close()
    elif channels:
        channels[-1].handle_close()


def _address_of(sock: Any) -> tuple[str, str]:
    address = sock.getsockname()
    return (f"[{address[0]}]" if ":" in address[0] else str(address[0]), str(address[1]))
