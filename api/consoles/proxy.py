"""The console proxy: a WebSocket for each console, forwarded to the agent of the server's host.

A connection names its token as ``?token=`` of the path, or in a cookie, as the page of noVNC does. A page in a browser must come
from the host that the browser has connected to, or from an allowed one, by the scheme of the configured URL. Otherwise any page
could use a token that it has got hold of.

Neither tokens nor requests are logged: the library that reads them has no log.
"""

from __future__ import annotations

import contextlib
import http.cookies
import logging
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve
from websockets.typing import Subprotocol

from api.console_opts import ProxySettings
from db.api.servers import console_tokens
from db.sql.engine import ApiDatabase
from objects import errors
from objects.console import ConsoleToken, access_path, digest_of
from service import metrics
from service.rate_limited_log import RateLimitedLog
from service.sockets import prepare_socket, shut_down
from service.threads import log_unstarted

LOG = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
"""Seconds in which the agent of the host connects to the console."""
MESSAGE_LIMIT = 1 << 20
"""Bytes of a message from a client."""
COPY_SIZE = 1 << 16
ANSWER_LIMIT = 4096
"""Bytes of the agent's answer."""
BACKLOG = 128
ACCEPT_PAUSE_S = 0.2
"""Seconds before the proxy accepts connections again after an error."""

CONSOLE_TYPES = ("novnc", "serial")
SCHEMES = {"ws": ("ws", "http"), "wss": ("wss", "https")}
"""What pages may have been loaded by, where the URL has this scheme. Of the others: by the same."""

GOING_AWAY, INTERNAL_ERROR = 1001, 1011
"""Codes of RFC 6455, section 7.4.1."""

_SILENT = logging.getLogger(f"{__name__}.library")
_SILENT.disabled = True


class ConsoleProxyService:
    """The proxy, in threads of this process. ``listener``: a bound socket that other processes may share."""

    def __init__(self, settings: ProxySettings, database: ApiDatabase, listener: socket.socket) -> None:
        self._settings = settings
        self._database = database
        self._listener = listener
        self._connection_slots = threading.BoundedSemaphore(settings.max_connections)
        self._lock = threading.Lock()
        self._servers: list[Server] = []  # the last one accepts connections
        self._guests: dict[socket.socket, str] = {}  # and the types of their consoles
        self._stopped = threading.Event()
        self._complaints = RateLimitedLog(LOG)
        metrics.CONSOLES.follow_reader(self._session_counts)

    def _session_counts(self) -> metrics.Values:
        with self._lock:
            counts = Counter(self._guests.values())
        return [((console_type,), counts[console_type]) for console_type in CONSOLE_TYPES]

    @property
    def listen_port(self) -> int:
        """The port it listens on."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Raises errors.Misconfigured if the certificate cannot be used."""
        context = tls_context(self._settings)
        self._listener.listen(BACKLOG)
        self._start_server(context)
        threading.Thread(target=self._run, args=(context,), name="console-proxy", daemon=True).start()
        LOG.info("The console proxy listens on %s port %d", self._settings.host, self.listen_port)

    def stop(self) -> None:
        """End all connections."""
        with self._lock:
            self._stopped.set()
            servers, guests = list(self._servers), list(self._guests)
        shut_down(*guests)
        for server in servers:
            server.shutdown(code=GOING_AWAY)
        self._listener.close()

    def _run(self, context: ssl.SSLContext | None) -> None:
        """The library ends its server when it cannot accept a connection: too many open files, or no room for a thread."""
        while not self._stopped.is_set():
            try:
                self._servers[-1].serve_forever()
            except (RuntimeError, MemoryError) as error:  # it starts a thread for each connection
                log_unstarted(error)
            if not self._stopped.wait(ACCEPT_PAUSE_S):
                self._complaints("accept", logging.WARNING, "A connection to a console could not be accepted")
                with contextlib.suppress(OSError):
                    self._start_server(context)

    def _start_server(self, context: ssl.SSLContext | None) -> None:
        with self._lock:
            if self._stopped.is_set():
                return
            server = serve(
                self._forward_console,
                sock=self._listener.dup(),  # the server closes its own
                ssl=context,
                select_subprotocol=_select_subprotocol,
                compression=None,
                process_request=self._admit_request,
                server_header=None,
                max_size=MESSAGE_LIMIT,
                logger=_SILENT,
            )
            server.handler = self._limit_connections(server, server.handler)
            self._servers = [running for running in self._servers if running.connections] + [server]

    # -- one connection, each in a thread of its own ----------------------------------------------------------------------------

    def _limit_connections(
        self, server: Server, handle: Callable[[socket.socket, Any], None]
    ) -> Callable[[socket.socket, Any], None]:
        def handle_if_there_is_room(connection: socket.socket, address: Any) -> None:
            if not self._connection_slots.acquire(blocking=False):
                text = "A connection to a console was closed: there are %d, see [console] max_connections"
                self._complaints("full", logging.WARNING, text, self._settings.max_connections)
                connection.close()
                with server.lock:
                    server.handler_threads.discard(threading.current_thread())
                return
            try:
                handle(connection, address)
            finally:
                self._connection_slots.release()

        return handle_if_there_is_room

    def _admit_request(self, connection: ServerConnection, request: Request) -> Response | None:
        """The refusal of a request; None: it is admitted. It says nothing about why a token is not good."""
        token = token_of(request.path, request.headers.get_all("Cookie"))
        try:
            console_token = self._database.read(console_tokens.find_token, digest_of(token)) if token else None
        except errors.DatabaseUnavailable as error:
            self._complaints("database", logging.WARNING, "A token of a console cannot be checked: %s", error)
            return connection.respond(503, "Tokens cannot be checked now. Try again in a moment.\n")
        if console_token is None:
            return connection.respond(403, "The token is not known, or has expired: ask for a new URL.\n")
        reason = self._refuse_origin(request.headers, console_token)
        if reason:
            LOG.warning("The console of instance %s is not shown to a page: %s", console_token.server_uuid, reason)
            return connection.respond(403, f"{reason}\n")
        return None

    def _refuse_origin(self, headers: Headers, token: ConsoleToken) -> str:
        """Why the page that opens the console must not; empty if it may. Programs name no origin."""
        origins, hosts = headers.get_all("Origin"), headers.get_all("Host")
        if not origins:
            return ""
        try:
            origin = urlsplit(origins[0])
            name, scheme = origin.hostname, origin.scheme
            host = urlsplit(f"//{hosts[0]}").hostname if hosts else None
        except ValueError:
            name, scheme, host = None, "", None
        if len(origins) > 1 or not name or not scheme:
            return "The header Origin cannot be used."
        if name not in {host, *(allowed.lower() for allowed in self._settings.allowed_origins)}:
            return "The page comes from another host: see [console] allowed_origins."
        forwarded = headers.get_all("X-Forwarded-Proto")
        urls = self._settings.urls
        own_scheme = urlsplit(urls.novnc_url if token.console_type == "novnc" else urls.serial_url).scheme
        if (forwarded[0].strip().lower() if forwarded else scheme) not in SCHEMES.get(own_scheme, (own_scheme,)):
            return "The page was loaded by another protocol than that of the console's URL."
        return ""

    def _forward_console(self, client: ServerConnection) -> None:
        request = client.request
        token = "" if request is None else token_of(request.path, request.headers.get_all("Cookie"))
        console_token = self._database.read(console_tokens.find_token, digest_of(token))
        if console_token is None:  # it went meanwhile
            client.close(INTERNAL_ERROR, "The token has expired.")
            return
        try:
            guest = connect_console(console_token, access_path(token))
        except OSError as error:
            listener = console_token.place.listener
            text = "The console of instance %s on host %s cannot be reached at %s port %d: %s"
            LOG.warning(text, console_token.server_uuid, console_token.place.host, listener.address, listener.port, error)
            client.close(INTERNAL_ERROR, "The host does not connect to the console.")
            return
        LOG.info("The %s console of instance %s is connected to", console_token.console_type, console_token.server_uuid)
        with guest, self._registered_guest(guest, console_token.console_type):
            back = threading.Thread(target=_to_client, args=(guest, client), name="console-to-client", daemon=True)
            back.start()
            _to_guest(client, guest)
            back.join()
        LOG.info("The %s console of instance %s was left", console_token.console_type, console_token.server_uuid)

    @contextlib.contextmanager
    def _registered_guest(self, guest: socket.socket, console_type: str) -> Iterator[None]:
        """``stop`` ends this connection."""
        with self._lock:
            self._guests[guest] = console_type
            if self._stopped.is_set():
                shut_down(guest)
        try:
            yield
        finally:
            with self._lock:
                del self._guests[guest]


def token_of(path: str, cookies: Iterable[str]) -> str:
    """The token that a connection names in its path or in a header Cookie; empty if it names none."""
    try:
        named = parse_qs(urlsplit(path).query).get("token", [])
    except ValueError:
        return ""
    if named:
        return named[-1]
    for part in (part for header in cookies for part in header.split(";")):
        with contextlib.suppress(http.cookies.CookieError):
            cookie = http.cookies.SimpleCookie(part.strip())
            if "token" in cookie:
                return cookie["token"].value
    return ""


def connect_console(token: ConsoleToken, path: str) -> socket.socket:
    """A connection to the console, made by the agent of its host. Raises OSError."""
    listener = token.place.listener
    guest = socket.create_connection((listener.address, listener.port), CONNECT_TIMEOUT_S)
    try:
        guest.sendall(f"CONNECT {path} HTTP/1.1\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):  # byte by byte: what follows is the console's
            byte = guest.recv(1)
            if not byte or len(answer) > ANSWER_LIMIT:
                raise ConnectionError("the agent has ended the connection")
            answer += byte
        status = answer.split(b" ", 2)[1:2]
        if status != [b"200"]:
            raise ConnectionError(f"the agent answers {b''.join(status)[:20].decode(errors='replace')}")
        prepare_socket(guest)
    except BaseException:
        guest.close()
        raise
    return guest


def _to_guest(client: ServerConnection, guest: socket.socket) -> None:
    """Until the client closes, or the guest does."""
    with contextlib.suppress(OSError, ConnectionClosed):
        for message in client:
            guest.sendall(message.encode(errors="replace") if isinstance(message, str) else message)
    shut_down(guest)


def _to_client(guest: socket.socket, client: ServerConnection) -> None:
    with contextlib.suppress(OSError, ConnectionClosed):
        while data := guest.recv(COPY_SIZE):
            client.send(data)
    client.close()


def _select_subprotocol(connection: ServerConnection, offered: object) -> Subprotocol | None:
    """Older pages of noVNC offer ``binary``, and wait for it."""
    return Subprotocol("binary") if isinstance(offered, list | tuple) and "binary" in offered else None


def tls_context(settings: ProxySettings) -> ssl.SSLContext | None:
    """None without a certificate. Raises errors.Misconfigured."""
    if not settings.cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.cert, settings.key or None)
    except OSError as error:  # of which an SSLError is one
        raise errors.Misconfigured(f"[console] cert, key: {settings.cert} cannot be used: {error.strerror or error}") from error
    return context


def bind(settings: ProxySettings) -> socket.socket:
    """A bound socket. Raises errors.Misconfigured."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address[:2])
        return bound
    except OSError as error:
        text = f"[console] host, port: cannot listen on {settings.host} port {settings.port}: {error.strerror}"
        raise errors.Misconfigured(text) from error
