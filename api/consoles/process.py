"""``superconductor-console-proxy``: the console proxy as a process. It needs the API database, and no bus."""

from __future__ import annotations

import importlib
import socket
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

from oslo_config import cfg

from api import console_opts
from cells.presence import Presence
from db.sql import ready
from db.sql.engine import ApiDatabase
from objects import errors
from objects.process import CONSOLE_PROXY_BINARY
from service import health, process
from service.opts import required_option
from service.process import Plan
from service.waiting import wait_for

POOL_SIZE = 4
"""Connections to the API database that are kept. A console is looked up twice, when it is opened."""


class ConsoleProxyRole:
    """The only worker."""

    def __init__(self, conf: cfg.ConfigOpts, listener: socket.socket) -> None:
        self._database = ApiDatabase(conf.api_database.connection, name="api", max_pool_size=POOL_SIZE)
        self._service = load_proxy().ConsoleProxyService(console_opts.read_proxy_settings(conf), self._database, listener)
        self._presence = Presence(self._database, "api", CONSOLE_PROXY_BINARY, conf.report_interval)
        self._sign = health.HealthCheck("the API database", lambda: ready.check_writable(self._database, "api"))

    def start(self, stopped: threading.Event) -> None:
        """Wait for the API database."""
        if wait_for("the API database", lambda: ready.check_schema(self._database, "api"), stopped):
            health.BOARD.watch_part(self._sign)
            self._service.start()
            self._presence.start()

    def stop(self) -> None:
        self._service.stop()
        self._presence.stop()
        health.BOARD.forget_part(self._sign)
        self._database.dispose_connections()

    def reload_settings(self) -> None:
        """None of its options can change while it runs."""


def load_proxy() -> ModuleType:
    """The module of the proxy. Raises errors.Misconfigured if its library is not installed."""
    try:
        return importlib.import_module("api.consoles.proxy")
    except ModuleNotFoundError as error:
        if error.name != "websockets":
            raise
        raise errors.Misconfigured("the console proxy needs websockets: pip install 'superconductor-cloud[consoles]'") from None


def read_plan(conf: cfg.ConfigOpts) -> Plan:
    """Binds the socket, so that an address in use is reported at once. Raises Misconfigured."""
    required_option(conf, "api_database.connection", "the URL of the API database")
    settings = console_opts.read_proxy_settings(conf)
    proxy = load_proxy()
    proxy.tls_context(settings)
    listener = proxy.bind(settings)
    return Plan(make=lambda: ConsoleProxyRole(conf, listener))


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the command."""
    return process.main(CONSOLE_PROXY_BINARY, argv, [console_opts.list_opts()], read_plan)


if __name__ == "__main__":
    sys.exit(main())
