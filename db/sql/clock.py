"""The database's own clock: what is written and read by it can be compared, whatever the clocks of the machines around it say.

A statement uses ``Now``. Code that needs a number asks ``Database.current_time``, which extrapolates the last ``ClockReading``.
"""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class Now(FunctionElement[float]):
    """The moment at which a statement runs, in seconds since the epoch, as an expression."""

    type = sa.Double()
    name = "now_in_seconds"
    inherit_cache = True


_SPELLED = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION)",  # clock_timestamp() would use no index
    "mysql": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6)",  # no UNIX_TIMESTAMP: it depends on the time zone
}


@compiles(Now)
def _spell_now(element: Now, compiler: Any, **_: object) -> str:
    return _SPELLED[compiler.dialect.name]


STEP_BACK_S = 86400.0
"""Seconds, more than any age that ``is_stale`` is asked for. A time so far ahead is from before the clock was set back."""


def is_stale(column: sa.ColumnElement[float], before: float | sa.ColumnElement[float]) -> sa.ColumnElement[bool]:
    """SQL condition: this stored time is earlier than ``before``, or it is from before the clock was set back far."""
    return sa.or_(column < before, column > before + STEP_BACK_S)


_READ = sa.select(Now())

READING_LIFETIME_S = 300.0
"""Seconds for which a reading is extrapolated. A step of the database's clock is noticed this late."""


def _steady_time() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


READINGS_LIMIT = 3
"""How often a new connection asks for the time..."""
CLOSE_READING_S = 0.002
"""...unless an answer came within so many seconds. A reading is off by half its round trip at most."""


class ClockReading:
    """The database's clock as this process last read it. Safe for threads: a reading is replaced as a whole."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        """The database's time, and this machine's steady clock at that moment."""

    def note_time(self, now: float) -> None:
        """The database's clock says ``now``, in seconds since the epoch."""
        self._last = (now, _steady_time())

    def refresh_reading(self, tx: Connection) -> None:
        """Read it by a statement of this transaction."""
        sent = _steady_time()
        now = read(tx)
        self._last = (now, (sent + _steady_time()) / 2)

    def take_reading(self, connection: Any, dialect: str) -> None:
        """Read it on a driver's connection that was just opened: several times while the machine is busy; the quickest counts."""
        cursor = connection.cursor()
        quickest = None
        try:
            for _ in range(READINGS_LIMIT):
                sent = _steady_time()
                cursor.execute(f"SELECT {_SPELLED[dialect]}")
                now = float(cursor.fetchone()[0])
                took = _steady_time() - sent
                if quickest is None or took < quickest:
                    quickest = took
                    self._last = (now, sent + took / 2)
                if took <= CLOSE_READING_S:
                    return
        finally:
            cursor.close()

    @property
    def is_fresh(self) -> bool:
        last = self._last
        return last is not None and _steady_time() - last[1] < READING_LIFETIME_S

    def current_time(self) -> float | None:
        """What the database's clock says now, in seconds since the epoch; None: it was never read."""
        last = self._last
        return None if last is None else last[0] + _steady_time() - last[1]


def read(tx: Connection) -> float:
    """What the database's clock says now."""
    return float(tx.execute(_READ).scalar_one())
