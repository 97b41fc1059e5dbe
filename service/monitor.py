"""A small HTTP server for monitoring a process: /metrics, /health, /alive. Nothing else waits for it or fails with it."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from oslo_config import cfg
from prometheus_client.exposition import choose_encoder
from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.task import ThreadedTaskDispatcher

from objects.base import Object
from service import health, metrics
from service.accepting import PausingServer
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

HTTP_THREADS = 2
CONNECTION_LIMIT = 50
LISTEN_RETRY_INTERVAL_S = 2.0
"""Seconds between two attempts to listen: the previous process may hold the port until it has ended."""
STOP_CHECK_INTERVAL_S = 1.0

GROUP = "monitoring"
OPTIONS = [
    cfg.StrOpt(
        "address",
        default="127.0.0.1",
        help="Address on which a process serves its metrics and health over HTTP, without authentication.",
    ),
    cfg.IntOpt(
        "port",
        default=0,
        help="Port of the first worker of a process; the second worker serves on the next port, and so on. Each process of a "
        "machine needs ports of its own. 0: neither metrics nor health are served. If the port cannot be used, the process logs "
        "it, retries, and works without it.",
    ),
    cfg.FloatOpt(
        "stuck_after",
        default=health.STUCK_AFTER_S,
        min=1.0,
        help="Seconds after which an unfinished round of a sweep, message or API request counts as wedged. A round is "
        "allowed ten of its intervals at least. Set it above the longest time that healthy work takes.",
    ),
]

Start = Callable[..., Any]


class MonitorSettings(Object, frozen=True, kw_only=True):
    """Where to serve. ``port`` 0: do not serve. ``stuck_after``: seconds."""

    address: str = "127.0.0.1"
    port: int = 0
    stuck_after: float = health.STUCK_AFTER_S


def read_settings(conf: cfg.ConfigOpts, worker: int = 0) -> MonitorSettings:
    """The settings of a worker; the first worker is number 0."""
    chosen = conf[GROUP]
    return MonitorSettings(address=chosen.address, port=chosen.port + worker if chosen.port else 0, stuck_after=chosen.stuck_after)


class Monitor:
    """Serves the metrics and the health of this process from ``start`` to ``stop``."""

    def __init__(self, chosen: MonitorSettings, board: health.Board = health.BOARD) -> None:
        self._settings = chosen
        self._board = board
        self._stopping = threading.Event()
        self._sockets: dict[int, Any] = {}
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def start(self) -> Monitor:
        """Listen as soon as possible. Does not wait, and never fails."""
        self._board.stuck = self._settings.stuck_after
        if self._settings.port:
            self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving. Requests in progress may be cut off."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2 * STOP_CHECK_INTERVAL_S)

    def _run(self) -> None:
        complaints = RateLimitedLog(LOG)
        while not self._stopping.is_set():
            try:
                server = self._open_listener()
            except (OSError, OverflowError) as error:
                where = f"{self._settings.address} port {self._settings.port}"
                why = getattr(error, "strerror", None) or str(error)
                text = "[monitoring] address, port: metrics and health cannot be served on %s, retrying: %s"
                complaints(why, logging.WARNING, text, where, why)
                self._stopping.wait(LISTEN_RETRY_INTERVAL_S)
            else:
                LOG.info("serving metrics and health on %s port %d", self._settings.address, self._settings.port)
                self._serve_until_stopped(server)

    def _open_listener(self) -> Any:
        host, port = self._settings.address, self._settings.port
        if not 0 < port < 65536:
            raise OverflowError("there is no such port")
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address[:2])
            listener.listen()
        except OSError:
            listener.close()
            raise
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # it warns about every request that waits for a thread
        adjustments = Adjustments(
            sockets=[listener], threads=HTTP_THREADS, connection_limit=CONNECTION_LIMIT, ident=None, asyncore_use_poll=True
        )
        dispatcher = ThreadedTaskDispatcher()
        dispatcher.set_thread_count(HTTP_THREADS)
        place = (listener.family, listener.type, listener.proto, listener.getsockname())
        return PausingServer(
            self.answer_request,
            self._sockets,
            True,
            listener,
            dispatcher=dispatcher,
            adj=adjustments,
            bind_socket=False,
            sockinfo=place,
        )

    def _serve_until_stopped(self, server: Any) -> None:
        try:
            while not self._stopping.is_set():
                wasyncore.loop(timeout=STOP_CHECK_INTERVAL_S / 4, use_poll=True, map=self._sockets, count=1)
        finally:
            server.task_dispatcher.shutdown(timeout=0.1)
            wasyncore.close_all(self._sockets, ignore_all=True)

    def answer_request(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        """The WSGI application."""
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _send(start, "405 Method Not Allowed", "text/plain", b"use GET\n")
        match environ.get("PATH_INFO", "/").rstrip("/"):
            case "/metrics":
                encode, kind = choose_encoder(environ.get("HTTP_ACCEPT", ""))
                return _send(start, "200 OK", kind, encode(metrics.REGISTRY))
            case "/alive":
                return _send(start, "200 OK", "text/plain", b"alive\n")
            case "/health" | "/healthcheck":
                process_health = self._board.look_at_parts()
                body = {"healthy": process_health.is_well, "checks": process_health.findings}
                status = "200 OK" if process_health.is_well else "503 Service Unavailable"
                return _send(start, status, "application/json", msgspec.json.encode(body) + b"\n")
        return _send(start, "404 Not Found", "text/plain", b"try /metrics, /health or /alive\n")


def _send(start: Start, status: str, kind: str, body: bytes) -> Iterable[bytes]:
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")])
    return [body]
