"""Whether a cell's database may be older than what the API level has seen of it, as one process of the cell's conductor knows.

Super conductors raise a mark in the cell's database (``db/cell/incarnation_mark.py``). They raise that of a restored database only
once its rows permit no more than the API database knows (``conductor/restored_cell.py``). So a mark that this process sees rise
confirms the rows. Until then no task begins and no order is repeated: the rows may be those of a backup.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from db.cell import incarnation_mark
from db.cell.incarnation_mark import KnownMark
from db.sql.engine import CellDatabase
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

UNCONFIRMED_WAIT_S = 300.0
"""Seconds after which a process that has seen no sign of a restore no longer waits for its rows to be confirmed.

After a power cut of a whole site the API database may stay away for long, and servers must start without it.
"""

UNCONFIRMED = "the API level has not confirmed the cell's database yet since the conductor's start"
OLDER = "the cell's database is older than its conductor has seen it, and the API level has not compared it yet"


class MarkWatch:
    """Compares the mark in the cell's database with what this process has read before. Thread-safe.

    A database without a mark was never known to an API database, so it is not older than one knows it.
    """

    def __init__(self, database: CellDatabase, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._started = clock()
        self._last: KnownMark | None = None
        self._has_read = False
        self._closed = UNCONFIRMED
        self._complaints = RateLimitedLog(LOG)

    def read_mark(self) -> str:
        """Read the mark; returns why nothing may begin now, empty if it may. Raises CellUnavailable, DatabaseUnavailable."""
        with self._lock:
            mark = self._database.read(incarnation_mark.read_mark)
            self._closed = self._judge_mark(mark)
            self._last, self._has_read = mark, True
            if self._closed == UNCONFIRMED and self._clock() - self._started > UNCONFIRMED_WAIT_S:
                LOG.warning("%s, for %d s: tasks and orders go on without", UNCONFIRMED, UNCONFIRMED_WAIT_S)
                self._closed = ""
            if self._closed == OLDER:
                self._complaints("older", logging.ERROR, "no task begins: %s", OLDER)
            return self._closed

    def _judge_mark(self, mark: KnownMark | None) -> str:
        last = self._last
        if not self._has_read:
            return "" if mark is None else UNCONFIRMED
        if mark == last:
            return self._closed
        if last is None:
            return ""
        if mark is None or mark.incarnation != last.incarnation or mark.mark < last.mark:
            return OLDER  # another incarnation may be an older one: its next mark shows which
        return ""
