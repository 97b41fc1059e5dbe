"""Connects the console proxy to consoles of guests on this host.

The consoles themselves listen nowhere that another machine could reach. A proxy connects to the agent's one port and sends
``CONNECT <access path> HTTP/1.1``, as for a console of the Compute API with an ``internal_access_path``. After the answer 200 the
connection is the console.

What is open is in memory only: after a restart of the agent users ask for new tokens.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compute.opts import ComputeSettings
from objects import errors
from objects.base import Object
from objects.console import ConsoleKind, ConsoleListener, digest_of
from service.rate_limited_log import RateLimitedLog
from service.sockets import prepare_socket, shut_down
from service.threads import start_daemon

LOG = logging.getLogger(__name__)

CONNECTION_LIMIT = 100
"""Connections at once, also those that have not shown an access path yet."""
GUEST_LIMIT = 32
"""Access paths of one guest and kind. One more replaces the oldest."""
REQUEST_TIMEOUT_S = 10.0
"""Seconds in which a connection shows its access path."""
REQUEST_LIMIT = 1024
"""Bytes of that request."""
COPY_SIZE = 1 << 16

_REQUEST = re.compile(rb"CONNECT /?([0-9A-Za-z_-]{1,128}) HTTP/1\.[01]\r\n(?:.*\r\n)?\r\n", re.DOTALL)
_ANSWERS = {
    200: b"HTTP/1.1 200 Connection established\r\n\r\n",
    400: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    404: b"HTTP/1.1 404 Not Found\r\n\r\n",
    409: b"HTTP/1.1 409 Conflict\r\n\r\n",
}


class ConsoleGrant(Object, frozen=True, kw_only=True):
    """An open console. ``until``: on the monotonic clock."""

    uuid: str
    kind: ConsoleKind
    until: float


@dataclass(slots=True, eq=False)
class _Session:
    """One connection of a proxy. Without a grant until it has shown its access path."""

    connection: socket.socket
    grant: ConsoleGrant | None = None
    guest: socket.socket | None = None

    def is_of(self, uuid: str, *kinds: ConsoleKind) -> bool:
        return self.grant is not None and self.grant.uuid == uuid and self.grant.kind in kinds

    def end_session(self) -> None:
        """Wake its threads, whatever they wait for."""
        shut_down(self.connection, *([self.guest] if self.guest is not None else []))


class ConsoleRelay:
    """``connect``: connects to a console of a guest, as the driver's ``connect_console``.

    The port is opened with the first console, unless it is a fixed one: then ``start`` opens it.
    """

    def __init__(self, settings: ComputeSettings, connect: Callable[[str, ConsoleKind], socket.socket]) -> None:
        self._settings = settings
        self._connect = connect
        self._lock = threading.Lock()
        self._grants: dict[str, ConsoleGrant] = {}  # by digest, the oldest first
        self._sessions: set[_Session] = set()
        self._serial: dict[str, threading.Lock] = {}  # by uuid: one connection to a serial port at a time
        self._listener: socket.socket | None = None
        self._stopped = False
        self._complaints = RateLimitedLog(LOG)

    def start(self) -> None:
        """Raises errors.Misconfigured if the configured port cannot be opened."""
        if self._settings.console_host and self._settings.console_port:
            with self._lock:
                self._open_listener()

    def open(self, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float) -> ConsoleListener:
        """Accept the access path with this digest for ``lifetime`` seconds, and tell where.

        Raises errors.NotOffered if this host is configured to connect nobody, errors.Conflict if the port cannot be opened.
        """
        if not self._settings.console_host:
            raise errors.NotOffered("This host connects to no consoles: [compute] console_host is empty.")
        now = time.monotonic()
        with self._lock:
            try:
                port = self._open_listener()
            except errors.Misconfigured as error:
                raise errors.Conflict(str(error)) from error
            self._grants = {digest: grant for digest, grant in self._grants.items() if grant.until > now}
            same = [digest for digest, grant in self._grants.items() if (grant.uuid, grant.kind) == (uuid, kind)]
            for digest in same[: max(0, len(same) - GUEST_LIMIT + 1)]:
                del self._grants[digest]
            self._grants[path_digest] = ConsoleGrant(uuid=uuid, kind=kind, until=now + lifetime)
        return ConsoleListener(address=self._settings.console_address or self._settings.console_host, port=port)

    def forget_guest(self, uuid: str) -> None:
        """The guest goes: end its connections, and accept no more."""
        with self._lock:
            self._grants = {digest: grant for digest, grant in self._grants.items() if grant.uuid != uuid}
            self._serial.pop(uuid, None)
            ending = [session for session in self._sessions if session.is_of(uuid, *ConsoleKind)]
        for session in ending:
            session.end_session()

    def stop(self) -> None:
        """End all connections, and accept no more."""
        with self._lock:
            self._stopped = True
            self._grants = {}
            ending = list(self._sessions)
        if self._listener is not None:
            shut_down(self._listener)
        for session in ending:
            session.end_session()

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _open_listener(self) -> int:
        """The port, opened if necessary. The caller holds the lock."""
        if self._stopped:
            raise errors.Misconfigured("The agent stops.")
        if self._listener is None:
            host, port = self._settings.console_host, self._settings.console_port
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                self._listener = socket.create_server((host, port), family=family, backlog=CONNECTION_LIMIT)
            except OSError as error:
                text = f"[compute] console_host, console_port: cannot listen on {host} port {port}: {error.strerror or error}"
                raise errors.Misconfigured(text) from error
            if not ipaddress.ip_address(self._listener.getsockname()[0]).is_loopback:
                LOG.info("Host %s connects proxies to consoles at %s", self._settings.host, self._listener.getsockname()[:2])
            threading.Thread(target=self._accept_connections, args=(self._listener,), name="console-relay", daemon=True).start()
        port = self._listener.getsockname()[1]
        return int(port)

    def _accept_connections(self, listener: socket.socket) -> None:
        with listener:
            while not self._stopped:
                try:
                    connection, _ = listener.accept()
                except OSError as error:
                    if self._stopped:
                        return
                    self._complaints("accept", logging.WARNING, "A connection to a console could not be accepted: %s", error)
                    time.sleep(0.1)  # out of descriptors, most likely
                    continue
                session = _Session(connection)
                with self._lock:
                    full = self._stopped or len(self._sessions) >= CONNECTION_LIMIT
                    if not full:
                        self._sessions.add(session)
                if full or start_daemon("console", self._serve_session, session) is None:
                    connection.close()
                    with self._lock:
                        self._sessions.discard(session)

    def _serve_session(self, session: _Session) -> None:
        try:
            with session.connection:
                self._answer_session(session)
        except OSError as error:
            LOG.debug("A connection to a console has ended: %s", error)
        finally:
            with self._lock:
                self._sessions.discard(session)

    def _answer_session(self, session: _Session) -> None:
        connection = session.connection
        request, rest = _read_request(connection)
        if request is None:
            connection.sendall(_ANSWERS[400])
            return
        grant = self._admit_session(session, digest_of(request.decode()))
        if grant is None:
            connection.sendall(_ANSWERS[404])
            return
        try:
            with self._hold_turn(session, grant):
                guest = self._connect(grant.uuid, grant.kind)
                with guest:
                    session.guest = guest
                    connection.sendall(_ANSWERS[200])
                    prepare_socket(connection)
                    prepare_socket(guest)
                    if rest:
                        guest.sendall(rest)
                    LOG.info("A proxy is connected to the %s console of instance %s", grant.kind, grant.uuid)
                    copy_both_ways(connection, guest)
                    LOG.info("A proxy has left the %s console of instance %s", grant.kind, grant.uuid)
        except errors.SuperconductorError as error:
            LOG.info("The %s console of instance %s cannot be connected to: %s", grant.kind, grant.uuid, error)
            connection.sendall(_ANSWERS[409])
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - a driver may raise anything, and this thread serves nothing else
            text = "The console of instance %s cannot be connected to"
            self._complaints(type(error).__name__, logging.ERROR, text, grant.uuid, exc_info=error)
            connection.sendall(_ANSWERS[409])

    def _admit_session(self, session: _Session, digest: str) -> ConsoleGrant | None:
        with self._lock:
            grant = self._grants.get(digest)
            if grant is None or grant.until <= time.monotonic():
                return None
            session.grant = grant
            return grant

    @contextlib.contextmanager
    def _hold_turn(self, session: _Session, grant: ConsoleGrant) -> Iterator[None]:
        """A serial port has one user: the newest one, who ends the others' connections."""
        if grant.kind is not ConsoleKind.SERIAL:
            yield
            return
        with self._lock:
            turn = self._serial.setdefault(grant.uuid, threading.Lock())
            others = [other for other in self._sessions if other is not session and other.is_of(grant.uuid, grant.kind)]
        for other in others:
            other.end_session()
        with turn:
            yield


def copy_both_ways(one: socket.socket, other: socket.socket) -> None:
    """Copy between two connections until either ends. Both are shut down then."""
    back = threading.Thread(target=_copy_bytes, args=(other, one), name="console-back", daemon=True)
    back.start()
    _copy_bytes(one, other)
    back.join()


def _copy_bytes(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(COPY_SIZE):
            target.sendall(data)
    shut_down(source, target)


def _read_request(connection: socket.socket) -> tuple[bytes | None, bytes]:
    """The access path, and what came after the request. None: it was no such request."""
    end = time.monotonic() + REQUEST_TIMEOUT_S
    received = b""
    while b"\r\n\r\n" not in received and len(received) < REQUEST_LIMIT:
        connection.settimeout(max(0.01, end - time.monotonic()))
        data = connection.recv(REQUEST_LIMIT)
        if not data:
            break
        received += data
    head, separator, rest = received.partition(b"\r\n\r\n")
    match = _REQUEST.fullmatch(head + separator)
    return (match[1] if match else None), rest
