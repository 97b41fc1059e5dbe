"""Rate limits of boots and lists per project: a token bucket for each."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict

from objects import errors

TRACKED_PROJECTS_LIMIT = 10_000
"""Maximum number of buckets. The least recently used is dropped first: it is full again by then, or nearly so."""


class TooFast(errors.SuperconductorError):
    """``retry_after``: whole seconds after which the project may retry."""

    def __init__(self, retry_after: int) -> None:
        super().__init__("This project sends such requests faster than it may. Try again later.")
        self.retry_after = retry_after


class RequestRateLimit:
    """At most ``burst`` requests at once and ``rate`` per second on average, per project and process."""

    def __init__(self, rate: float, burst: int) -> None:
        """``rate`` 0: no limit."""
        self._rate = rate
        self._burst = float(max(burst, 1))
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # project: (tokens left, monotonic time)

    def count_request(self, project_id: str) -> None:
        """Count one request of this project. Raises TooFast."""
        if not self._rate:
            return
        now = time.monotonic()
        with self._lock:
            tokens, at = self._buckets.pop(project_id, (self._burst, now))
            tokens = min(self._burst, tokens + (now - at) * self._rate)
            self._buckets[project_id] = (tokens - 1.0 if tokens >= 1.0 else tokens, now)
            if len(self._buckets) > TRACKED_PROJECTS_LIMIT:
                self._buckets.popitem(last=False)
        if tokens < 1.0:
            raise TooFast(math.ceil((1.0 - tokens) / self._rate))
