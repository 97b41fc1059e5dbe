"""A busy machine reads the database's clock late: the reading that took least counts."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

from db.sql.clock import CLOSE_READING_S, ClockReading

LATE = 0.2


class SlowCursor(sqlite3.Cursor):
    """Its first answer reaches the program late, as where other threads have the processor."""

    late = True

    def fetchone(self) -> Any:
        answer = super().fetchone()
        if SlowCursor.late:
            SlowCursor.late = False
            time.sleep(LATE)
        return answer


class SlowConnection(sqlite3.Connection):
    def cursor(self, *_: object) -> Any:
        return super().cursor(SlowCursor)


def test_a_late_answer_is_asked_for_again() -> None:
    SlowCursor.late = True
    reading = ClockReading()
    reading.take_reading(sqlite3.connect(":memory:", factory=SlowConnection), "sqlite")
    now = reading.current_time()
    assert now is not None
    assert CLOSE_READING_S < LATE / 10
    assert abs(now - time.time()) < LATE / 2
