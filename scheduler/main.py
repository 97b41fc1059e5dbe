"""The scheduler's composition root."""

from __future__ import annotations

import os
import socket
import uuid

from cells.registry import CellRegistry
from db.api.claims import Ledger
from db.sql.engine import ApiDatabase
from rpc import scheduler as seam
from rpc.server import TopicServer
from rpc.transport import Bus
from scheduler.cursor import Cursor
from scheduler.freshness import Freshness
from scheduler.manager import SchedulerManager
from scheduler.plugins import load_driver
from scheduler.room import Room
from scheduler.settings import SchedulerSettings
from scheduler.table.host_table import HostTable


class SchedulerService:
    """One scheduler process. Any number may run beside each other, without a leader."""

    def __init__(self, settings: SchedulerSettings, registry: CellRegistry, api_database: ApiDatabase, bus: Bus) -> None:
        """Raises Misconfigured where a filter, weigher or driver is named that does not exist."""
        self._server_name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._bus = bus
        self._server: TopicServer | None = None
        table, cursor = HostTable(settings.default_availability_zone), Cursor()
        self.freshness = Freshness(settings, registry, api_database, table, cursor)
        self._table = table
        self._room = Room(table)
        ledger = Ledger(api_database, f"scheduler {self._server_name}")
        self.manager = SchedulerManager(
            settings, load_driver(settings), table, cursor, ledger, self.freshness.ages, self.freshness.topology
        )

    def start(self) -> None:
        """Serve the topic ``scheduler``, once the fleet has been looked at. Raises DatabaseUnavailable if that cannot be done."""
        self.freshness.start()
        self._server = seam.serve(self._bus, self._server_name, self.manager)

    def check(self) -> None:
        """Raise Unreachable while the bus does not bring it any calls."""
        if self._server is not None:
            self._server.check()

    def reload(self, settings: SchedulerSettings) -> None:
        """Choose hosts as ``settings`` say from the next call on. Raises Misconfigured, and then nothing changes."""
        self.manager.reload(settings, load_driver(settings))

    def schedulable(self) -> int:
        """How many nodes are mapped, accounted for and not forced down: what a request could be placed on if it fits."""
        with self._table.lock:
            return int(self._table.eligible[: self._table.size].sum())

    def stop(self) -> None:
        """Take no new calls, answer those under way. Harmless where ``start`` failed."""
        if self._server is not None:
            self._server.stop()
        self.freshness.stop()
