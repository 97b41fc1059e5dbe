"""What a process of a conductor, scheduler or API shows of itself: one record in its level's database for as long as it runs."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid

from db import processes
from db.processes import Level
from db.sql.engine import Database
from objects import errors, text
from objects.messages_version import SPAN
from objects.process import About, Process
from service.periodic import Periodic
from service.release import installed_release

LOG = logging.getLogger(__name__)


RECORD_LIFETIME_S = 3600.0
"""Seconds for which the record of a process stays that died without saying so."""

SHUTDOWN_WAIT_S = 2.0
"""Seconds that a process which ends may take for a heartbeat under way, and for taking its record back."""


class Presence:
    """Renews its record every ``interval`` seconds, in a thread of its own; costs one small write each time.

    A database that is away costs nothing but the record's freshness. A process that was paused for long makes its record anew.
    """

    def __init__(self, database: Database, level: Level, binary: str, interval: float = 20.0) -> None:
        self._database = database
        self._level = level
        self._binary = binary
        self._uuid = str(uuid.uuid4())
        self._began = time.monotonic()
        self._begun = False
        self._beating = Periodic(f"presence-{binary}", interval, self._record_life)

    def start(self) -> None:
        """From now on the process is seen."""
        self._begun = True
        self._beating.start()

    def stop(self) -> None:
        """Take the record back. If that cannot be done within seconds, it is forgotten in time."""
        if self._begun:
            self._beating.stop(timeout=SHUTDOWN_WAIT_S)
            ending = threading.Thread(target=self._end_record, name=f"end-{self._binary}", daemon=True)
            ending.start()
            ending.join(SHUTDOWN_WAIT_S)

    def _end_record(self) -> None:
        try:
            self._database.write(processes.end_process, self._level, self._uuid)
        except errors.DatabaseUnavailable as error:
            LOG.info("the record of this process was not removed; it expires by itself: %s", error)

    def _record_life(self) -> None:
        if not self._database.write(processes.renew_process, self._level, self._uuid):
            self._database.write(processes.record_process, self._level, self._process_record())

    def _process_record(self) -> Process:
        return Process(
            uuid=self._uuid,
            binary=self._binary,
            host=text.clean_text(socket.gethostname(), text.NAME_LENGTH),
            about=About(release=installed_release(), messages=str(SPAN), pid=os.getpid()),
            started_at=0.0,
            last_seen=0.0,
            age=time.monotonic() - self._began,
        )
