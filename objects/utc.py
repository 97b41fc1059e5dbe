"""Times of rows as dates."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from objects.feed_check import LATEST_TIME_S


def to_utc(at: float) -> datetime:
    """Seconds since the epoch as a date; a time out of range as the nearest valid one.

    Rows may hold any number: an invalid one must not break a list.
    """
    return datetime.fromtimestamp(0.0 if math.isnan(at) else min(max(at, 0.0), LATEST_TIME_S), UTC)
