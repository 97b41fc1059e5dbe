"""Composition root of the API: the WSGI application for any server, and a server of its own."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from typing import Any

import waitress.server
from waitress import wasyncore

from api.app import App, make_app
from api.opts import Settings
from cells.registry import CellRegistry
from db.claims import Ledger
from db.engine import Database
from objects import errors
from rpc.super_conductor import SuperConductorClient
from rpc.transport import Bus

LOG = logging.getLogger(__name__)

BACKLOG = 1024
CONNECTIONS = 1000
POLL = 1.0
"""Seconds after which the loop looks whether it is to end, should the wake-up be lost."""
DRAIN = 20
"""Rounds of the loop, of 50 ms at most, that the last answers have to leave."""


def build_app(settings: Settings, registry: CellRegistry, api_database: Database, bus: Bus) -> App:
    """The WSGI callable, for any server."""
    ledger = Ledger(api_database, "superconductor-api")
    return make_app(settings, api_database, registry, ledger, SuperConductorClient(bus))


class ApiService:
    """The API behind waitress, in threads of this process."""

    def __init__(self, settings: Settings, registry: CellRegistry, api_database: Database, bus: Bus) -> None:
        self._settings = settings
        self._app = build_app(settings, registry, api_database, bus)
        self._stopping = False
        self._ending = threading.Lock()
        self._ended = False
        self._sockets: dict[int, Any] = {}
        self._server: Any = None
        self._thread = threading.Thread(target=self._serve, name="api", daemon=True)
        self._port = settings.port

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        return self._port

    def start(self) -> None:
        """Listen and serve. Raises errors.Misconfigured for an address that cannot be listened on, or that others can reach."""
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # it warns of every request that waits for a thread
        listener = self._listen()
        self._port = listener.getsockname()[1]
        self._server = waitress.server.create_server(
            self._app,
            map=self._sockets,
            sockets=[listener],
            threads=self._settings.threads,
            connection_limit=CONNECTIONS,
            ident=None,
            asyncore_use_poll=True,
        )
        self._thread.start()
        LOG.info("API listens on %s port %d", self._settings.host, self._port)

    def stop(self) -> None:
        """Take no more connections, answer what is under way, and end."""
        if self._server is None:
            return
        with self._ending:
            self._stopping = True
            if not self._ended:  # else the trigger is closed, and its number may be another file's by now
                self._server.pull_trigger()
        self._thread.join()
        self._server = None

    def _serve(self) -> None:
        while not self._stopping:
            wasyncore.loop(timeout=POLL, use_poll=True, map=self._sockets, count=1)
        self._server.accepting = False
        self._server.task_dispatcher.shutdown()
        for _ in range(DRAIN):
            if not any(channel.total_outbufs_len for channel in self._server.active_channels.values()):
                break
            wasyncore.loop(timeout=0.05, use_poll=True, map=self._sockets, count=1)
        with self._ending:
            self._ended = True
            wasyncore.close_all(self._sockets, ignore_all=True)

    def _listen(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            if not (self._settings.noauth_anywhere or ipaddress.ip_address(address[0]).is_loopback):
                raise errors.Misconfigured(
                    f"[api] host: {host} can be reached by other machines, and this API authenticates nobody. "
                    "Listen on 127.0.0.1, or set [api] noauth_anywhere = true."
                )
            return socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            raise errors.Misconfigured(f"[api] host, port: cannot listen on {host} port {port}: {error.strerror}") from error
