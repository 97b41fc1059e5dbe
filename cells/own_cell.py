"""What a process of one cell stands on: the cell's database and its bus, and nothing of the API level or of other cells."""

from __future__ import annotations

import threading

from oslo_config import cfg

from cells import releases
from db.sql import ready
from db.sql.engine import CellDatabase
from rpc.transport import Bus
from service import health, notifications, upgrade_levels
from service.opts import required_option
from service.waiting import wait_for


class OwnCell:
    """Opens nothing before it is used, and must be made after a process has forked.

    ``name`` is what logs call the cell: its database's name, as a cell need not know what the API level calls it.
    """

    def __init__(self, conf: cfg.ConfigOpts, pool_size: int) -> None:
        check_config(conf)
        self.database = CellDatabase(
            conf.cell_database.connection, max_pool_size=pool_size, outbox=notifications.read_settings(conf).is_on
        )
        self.name = self.database.name
        self.bus = Bus(conf.transport_url, name=self.name)
        self.bus.peers = releases.cell_peers(self.database.read, upgrade_levels.read_settings(conf))
        self._sign = health.HealthCheck(f"the database of cell {self.name}", lambda: ready.check_writable(self.database, "cell"))

    def wait_ready(self, stopped: threading.Event) -> bool:
        """Wait until the database has its schema and the bus answers; return False if ``stopped`` was set before that."""
        if not wait_for(f"the database of cell {self.name}", self._check_schema, stopped):
            return False
        health.BOARD.watch_part(self._sign)
        return wait_for(f"the bus of cell {self.name}", self.bus.check_broker, stopped)

    def _check_schema(self) -> None:
        ready.check_schema(self.database, "cell")
        self.database.read(releases.check_cell)

    def close(self) -> None:
        """Give up all connections, in bounded time."""
        health.BOARD.forget_part(self._sign)
        self.bus.close()
        self.database.dispose_connections()


def check_config(conf: cfg.ConfigOpts) -> None:
    """Raise Misconfigured where a conductor of a cell could not work with this configuration."""
    required_option(conf, "cell_database.connection", "the URL of the cell's database")
    required_option(conf, "transport_url", "the URL of the cell's bus")
    upgrade_levels.read_settings(conf)
