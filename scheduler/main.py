"""The scheduler's composition root."""

from __future__ import annotations

import os
import socket
import uuid

from cells.registry import CellRegistry
from db.api.claims.claims import Ledger
from db.sql.engine import ApiDatabase
from rpc import scheduler as seam
from rpc.server import TopicServer
from rpc.transport import Bus
from scheduler.capacity_metrics import CapacityMetrics
from scheduler.claim.cursor import Cursor
from scheduler.framework.settings import SchedulerSettings
from scheduler.manager import SchedulerManager
from scheduler.plugins import load_driver
from scheduler.table.host_table import HostTable
from scheduler.table_updater import TableUpdater
from service.periodic import Periodic

SURVEYS_INTERVAL_S = 0.2
"""Seconds between two looks at surveys that are kept. Until a new one is made, a request for it costs a pass over the fleet."""


class SchedulerService:
    """One scheduler process. Any number may run at the same time, without a leader."""

    def __init__(self, settings: SchedulerSettings, registry: CellRegistry, api_database: ApiDatabase, bus: Bus) -> None:
        """Raises Misconfigured if ``settings`` name a filter, weigher or driver that does not exist."""
        self._server_name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._bus = bus
        self._server: TopicServer | None = None
        table, cursor = HostTable(settings.default_availability_zone), Cursor()
        self.freshness = TableUpdater(settings, registry, api_database, table, cursor)
        self._table = table
        self._room = CapacityMetrics(table)
        ledger = Ledger(api_database, f"scheduler {self._server_name}")
        self.manager = SchedulerManager(settings, load_driver(settings), table, cursor, ledger, self.freshness)
        self._keeper = Periodic("scheduler-surveys", SURVEYS_INTERVAL_S, self.manager.keep_surveys)

    def start(self) -> None:
        """Read the fleet, then serve the topic ``scheduler``. Raises DatabaseUnavailable if the API database cannot be read."""
        self.freshness.start()
        self._keeper.start()
        self._server = seam.serve_topic(self._bus, self._server_name, self.manager)

    def check_listening(self) -> None:
        """Raise Unreachable while the server is not listening on the bus."""
        if self._server is not None:
            self._server.check_listening()

    def reload_settings(self, settings: SchedulerSettings) -> None:
        """Use ``settings`` from the next transaction on. Raises Misconfigured, and then changes nothing."""
        self.manager.reload_settings(settings, load_driver(settings))

    def count_schedulable(self) -> int:
        """The number of eligible nodes: mapped, known to the ledger, not forced down, and reported by one cell only."""
        with self._table.lock:
            return int(self._table.eligible[: self._table.size].sum())

    def count_known(self) -> int:
        """The number of nodes that are mapped and have reported, whatever is said of their hosts."""
        with self._table.lock:
            return int(self._table.are_known(slice(0, self._table.size)).sum())

    def stop(self) -> None:
        """Take no new calls, and answer those under way. May also be called if ``start`` failed."""
        if self._server is not None:
            self._server.stop()
        self._keeper.stop()
        self.freshness.stop()
