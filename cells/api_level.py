"""What a process of the API level stands on: the API database, the registry of cells, the API level's bus."""

from __future__ import annotations

import threading
from functools import partial

from oslo_config import cfg

from cells import opts, releases
from cells.registry import CellRegistry, open_database
from db.sql import ready
from db.sql.engine import ApiDatabase
from rpc.transport import Bus
from service import health, notifications, upgrade_levels
from service.opts import required_option
from service.waiting import wait_for


class ApiLevel:
    """Opens nothing before it is used, and must be made after a process has forked.

    ``pool_size``: connections to the API database that are kept. Raises Misconfigured where a URL is missing or cannot work.
    """

    def __init__(self, conf: cfg.ConfigOpts, pool_size: int) -> None:
        check_config(conf)
        outbox = notifications.read_settings(conf).is_on
        self.database = ApiDatabase(conf.api_database.connection, name="api", max_pool_size=pool_size, outbox=outbox)
        self.url: str = conf.api_transport_url or conf.transport_url
        self.bus = Bus(self.url, name="api")
        self.bus.peers = releases.level_peers(self.database.read, upgrade_levels.read_settings(conf))
        self.registry = CellRegistry(self.database, opts.read_settings(conf), open_database=partial(open_database, outbox=outbox))
        self._sign = health.HealthCheck("the API database", lambda: ready.check_writable(self.database, "api"))
        self._bus_sign = health.HealthCheck("the API level's bus", self.bus.find_trouble)

    def wait_ready(self, stopped: threading.Event, *, for_bus: bool) -> bool:
        """Wait until the API database has its schema and, if asked, the bus answers; return False if ``stopped`` before that."""
        if not wait_for("the API database", self._check_schema, stopped):
            return False
        health.BOARD.watch_part(self._sign)
        health.BOARD.watch_part(self._bus_sign)
        return not for_bus or wait_for("the API level's bus", self.bus.check_broker, stopped)

    def _check_schema(self) -> None:
        ready.check_schema(self.database, "api")
        self.database.read(releases.check_api_level)

    def close(self) -> None:
        """Give up all connections, in bounded time."""
        health.BOARD.forget_part(self._sign)
        health.BOARD.forget_part(self._bus_sign)
        self.registry.close()
        self.bus.close()
        self.database.dispose_connections()


def check_config(conf: cfg.ConfigOpts) -> None:
    """Raise Misconfigured where a process of the API level could not work with this configuration."""
    required_option(conf, "api_database.connection", "the URL of the API database")
    if not conf.api_transport_url:
        required_option(conf, "transport_url", "the URL of the API level's bus")
    upgrade_levels.read_settings(conf)
