"""Compose the API: the WSGI application for any server, and our own HTTP server."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from waitress import wasyncore

from api.app import App, make_app
from api.http.http_server import BACKLOG, ConnectionLimits, HttpServer, parse_networks
from api.http.keystone import Application
from api.lookup.guest_asker import GuestAsker
from api.lookup.scheduler_queries import SchedulerAsker
from api.opts import ApiSettings
from api.routes import Routes
from cells.registry import CellRegistry
from db.api.claims.claims import Ledger
from db.sql.engine import ApiDatabase
from objects import errors
from rpc.scheduler import SchedulerClient
from rpc.super_conductor import SuperConductorClient
from rpc.transport import Bus
from service import health, room
from service.vault import Vault

LOG = logging.getLogger(__name__)

Middleware = Callable[[Application], Application]

LOOP_TIMEOUT_S = 1.0
"""Seconds after which the loop checks whether to stop, in case the wake-up was lost."""
DRAIN_ROUNDS = 20
"""Rounds of the loop, each at most 50 ms, for sending the last answers."""


def build_app(
    settings: ApiSettings, registry: CellRegistry, api_database: ApiDatabase, bus: Bus, vault: Vault | None = None
) -> App:
    """The WSGI application, for any server. Without a vault with a master key it accepts no user data and no password."""
    ledger = Ledger(api_database, "superconductor-api")
    conductors = SuperConductorClient(bus)
    guests = GuestAsker(settings, api_database, conductors, inline=bus.is_embedded)
    schedulers = SchedulerAsker(settings, SchedulerClient(bus, timeout=settings.cell_timeout), inline=bus.is_embedded)
    routes = Routes(settings, api_database, registry, ledger, conductors, guests, vault or Vault(), schedulers)
    return make_app(settings, routes)


class ApiService:
    """The API behind waitress, in threads of this process."""

    def __init__(
        self,
        settings: ApiSettings,
        registry: CellRegistry,
        api_database: ApiDatabase,
        bus: Bus,
        *,
        listener: socket.socket | None = None,
        vault: Vault | None = None,
        guard: Middleware | None = None,
    ) -> None:
        """``listener``: a bound socket shared with other processes; None: make one from ``settings``.

        ``guard`` wraps the application to authenticate callers. Raises Misconfigured for an invalid policy file.
        """
        self._settings = settings
        self._listener = listener
        self._build: Callable[[ApiSettings], App] = partial(
            build_app, registry=registry, api_database=api_database, bus=bus, vault=vault
        )
        self._guard = guard or (lambda application: application)
        self._app = self._guard(self._build(settings))
        self._stopping = False
        self._ending = threading.Lock()
        self._ended = False
        self._sockets: dict[int, Any] = {}
        self._server: HttpServer | None = None
        self._thread = threading.Thread(target=self._serve_loop, name="api", daemon=True)
        self._room = health.HealthCheck("the image store", lambda: room.trouble_of(settings.images_folder))
        self._port = settings.port
        self._under_way = health.UnderWay()
        self._begun_at = time.monotonic()
        self._turned_at = time.monotonic()

    @property
    def name(self) -> str:
        """Its name in health reports."""
        return "API"

    def find_trouble(self) -> str:
        """Why requests are not answered; empty if they are."""
        server = self._server
        stuck = self._under_way.describe_trouble("request") or (
            server.describe_overload(self._begun_at, health.ANSWER_TIMEOUT_S) if server else ""
        )
        if stuck or self._ended or time.monotonic() < self._turned_at + health.ANSWER_TIMEOUT_S:
            return stuck
        return f"the HTTP loop has not run for {time.monotonic() - self._turned_at:.0f} s"

    @property
    def listen_port(self) -> int:
        """The port it listens on, once started."""
        return self._port

    def start(self) -> None:
        """Listen and serve. Raises errors.Misconfigured if it cannot listen on the address, or if other machines can reach it
        without authentication.
        """
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # it warns about every request that waits for a thread
        listener = self._listener or bind_socket(self._settings)
        listener.listen(BACKLOG)  # only now: a client should be refused rather than wait for a service that has not started
        self._port = listener.getsockname()[1]
        self._server = HttpServer(self._handle_request, self._sockets, listener, limits_of(self._settings))
        self._turned_at = time.monotonic()
        self._thread.start()
        health.BOARD.watch_part(self)
        if self._settings.images_folder:
            health.BOARD.watch_part(self._room)
        LOG.info("API listens on %s port %d", self._settings.host, self._port)

    def reload_settings(self, settings: ApiSettings) -> None:
        """Use ``settings`` for new requests; requests under way keep the old ones. The address and port stay the same."""
        self._app = self._guard(self._build(settings))

    def _handle_request(self, environ: dict[str, Any], start_response: Any) -> Any:
        self._begun_at = time.monotonic()
        with self._under_way:
            return self._app(environ, start_response)

    def stop(self) -> None:
        """Accept no more connections, answer the requests under way, and end."""
        if self._server is None:
            return
        health.BOARD.forget_part(self)
        health.BOARD.forget_part(self._room)
        with self._ending:
            self._stopping = True
            if not self._ended:  # otherwise the trigger is closed, and its descriptor may be reused
                self._server.pull_trigger()
        self._thread.join()
        self._server = None

    def _serve_loop(self) -> None:
        server = self._server
        assert server is not None  # noqa: S101 - start() sets it before it starts this thread
        while not self._stopping:
            wasyncore.loop(timeout=LOOP_TIMEOUT_S, use_poll=True, map=self._sockets, count=1)
            self._turned_at = time.monotonic()
            server.record_load(self._turned_at)
        server.accepting = False
        server.task_dispatcher.shutdown()
        for _ in range(DRAIN_ROUNDS):
            if not server.is_sending:
                break
            wasyncore.loop(timeout=0.05, use_poll=True, map=self._sockets, count=1)
        with self._ending:
            self._ended = True
            wasyncore.close_all(self._sockets, ignore_all=True)


def limits_of(settings: ApiSettings) -> ConnectionLimits:
    """The limits of the HTTP server. Raises Misconfigured."""
    parse_networks(settings.trusted_proxies)
    return ConnectionLimits(
        threads=settings.threads,
        max_connections=settings.max_connections,
        max_connections_per_peer=settings.max_connections_per_peer,
        trusted_proxies=settings.trusted_proxies,
    )


def bind_socket(settings: ApiSettings) -> socket.socket:
    """A socket bound as ``settings`` say. Raises Misconfigured if the address is in use, or if other machines can reach it
    without authentication.
    """
    host, port = settings.host, settings.port
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        anywhere = settings.noauth_anywhere or settings.auth_strategy != "noauth"
        if not (anywhere or ipaddress.ip_address(address[0]).is_loopback):
            raise errors.Misconfigured(
                f"[api] host: {host} can be reached by other machines, and this API authenticates nobody. "
                "Listen on 127.0.0.1, have callers authenticated ([api] auth_strategy), or set [api] noauth_anywhere = true."
            )
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address[:2])
        return bound
    except OSError as error:
        raise errors.Misconfigured(f"[api] host, port: cannot listen on {host} port {port}: {error.strerror}") from error
